"""The trust in a shard: a score from 0 to 100, which failures lower and good behaviour brings back.

A shard with a score below QUARANTINED_BELOW gets only duties that no other shard takes, until its score is TRUSTED_FROM
again.
"""

from typing import Final

from minka.v1.duties_pb2 import Shard

FULL_SCORE: Final = 100
QUARANTINED_BELOW: Final = 30
TRUSTED_FROM: Final = 60
HALF_LIFE_MS: Final = 30_000
SILENCE: Final = 50  # points for silence beyond the clearance
FLAP: Final = 15  # points for a heartbeat that came nearly too late
_MOST: Final = 200  # points
_THOUSANDTHS: Final = 1000


def penalty(shard: Shard, now_ms: int) -> float:
    """The shard's penalty in points, at this Unix time in milliseconds."""
    return shard.penalty / _THOUSANDTHS * _faded(shard, now_ms)


def _faded(shard: Shard, now_ms: int) -> float:
    return float(0.5 ** (max(0, now_ms - shard.penalty_ms) / HALF_LIFE_MS))


def score(shard: Shard, now_ms: int) -> int:
    """The shard's health, from 0 to 100."""
    return max(0, round(FULL_SCORE - penalty(shard, now_ms)))


def penalize(shard: Shard, points: int, now_ms: int, *, crashed: bool = False) -> None:
    """Add penalty points to the shard's row. `crashed`: its process ended without a word."""
    most, more, faded = _MOST * _THOUSANDTHS, points * _THOUSANDTHS, _faded(shard, now_ms)
    shard.penalty = min(most, round(shard.penalty * faded) + more)
    shard.crash_penalty = min(most, round(shard.crash_penalty * faded) + more * crashed)
    shard.penalty_ms = now_ms


def inherit(shard: Shard, former: Shard) -> None:
    """A new process of the shard inherits only the penalty for crashes: it isn't to blame for the late heartbeats of
    the former one, but a shard that ends without a word again and again isn't trusted.
    """
    shard.penalty = shard.crash_penalty = former.crash_penalty
    shard.penalty_ms = former.penalty_ms
