"""Decides if a request that a node refused is repeated, and after which pause. Pure."""

from random import Random
from typing import Final

from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WRITING, Op

_FIRST_DELAY_S: Final = 0.005
_MAX_DELAY_S: Final = 0.2

# Refusals with these codes don't depend on which node leads the partition.
_ROUTED_RIGHT: Final = frozenset({Code.OVERLOADED, Code.AGE_UNKNOWN})


def is_repeatable(error: MinkaError, op: Op) -> bool:
    """True if the same operation can be sent again without the danger of doing it twice.

    Retriable codes say that nothing was done. If the outcome isn't known, a read can be repeated. A write can't be
    repeated, not even a put, since another client's write may have come in between; an increment would count twice.
    """
    return error.code.info.retriable or (op not in WRITING and error.code is Code.OUTCOME_UNKNOWN)


def asks_for_table(error: MinkaError) -> bool:
    """True if the refusal hints that the client's partition table is out of date."""
    return error.code not in _ROUTED_RIGHT


def delay_s(attempt: int, rng: Random) -> float:
    """The seconds to wait after a try (1 for the first): exponential with a limit and jitter."""
    assert attempt >= 1, attempt
    return min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(attempt - 1, 20)) * rng.uniform(0.5, 1.0)
