"""The trust in a shard: a score from 0 to 100. Failures lower it by points, of which half are gone after 30 s.

A shard with a score below QUARANTINED_BELOW gets only duties that no other shard takes, until its score is at least
TRUSTED_FROM. Example: after two silences (100 points) the score is 0, 30 s later 50, and 40 s later 60.
"""

from math import ceil, log2
from typing import Final

from minka.v1.duties_pb2 import Shard

FULL_SCORE: Final = 100
QUARANTINED_BELOW: Final = 30
TRUSTED_FROM: Final = 60
HALF_LIFE_MS: Final = 30_000  # in this time, a penalty falls to half
SILENCE: Final = 50  # points for silence beyond the clearance
FLAP: Final = 15  # points for a heartbeat that came nearly too late
_MOST: Final = 200  # points of a penalty: beyond this, further failures don't count
_THOUSANDTHS: Final = 1000  # of a point, in which rows have penalties


def penalty(shard: Shard, now_ms: int) -> float:
    """The shard's penalty in points, at this Unix time in milliseconds."""
    return shard.penalty / _THOUSANDTHS * _faded(shard, now_ms)


def _faded(shard: Shard, now_ms: int) -> float:
    return float(0.5 ** (max(0, now_ms - shard.penalty_ms) / HALF_LIFE_MS))


def score(shard: Shard, now_ms: int) -> int:
    """The shard's health, from 0 to 100."""
    return max(0, round(FULL_SCORE - penalty(shard, now_ms)))


def trusted_in_ms(shard: Shard, now_ms: int) -> int:
    """The time after which the score of the shard is TRUSTED_FROM if no failure lowers it; 0 if it is that already."""
    # Scores are rounded, so half a point less is enough.
    most = FULL_SCORE - TRUSTED_FROM + 0.5
    return ceil(HALF_LIFE_MS * log2(max(1.0, penalty(shard, now_ms) / most)))


def penalize(shard: Shard, points: int, now_ms: int, *, crashed: bool = False) -> None:
    """Add penalty points to the shard's row. `crashed`: its process has ended without notice."""
    most, more, faded = _MOST * _THOUSANDTHS, points * _THOUSANDTHS, _faded(shard, now_ms)
    shard.penalty = min(most, round(shard.penalty * faded) + more)
    shard.crash_penalty = min(most, round(shard.crash_penalty * faded) + more * crashed)
    shard.penalty_ms = now_ms


def inherit(shard: Shard, former: Shard) -> None:
    """Give a new process of the shard the former one's penalty for crashes, and no other penalty: the new process isn't
    to blame for the former one's late heartbeats, but a shard whose processes crash again and again can't be trusted.
    """
    shard.penalty = shard.crash_penalty = former.crash_penalty
    shard.penalty_ms = former.penalty_ms
