"""The time that a call has for its answer."""

from typing import Any, Final, cast

import grpc

_ANSWERING_PART: Final = 0.95  # of the caller's time; the rest is for the way back


def time_to_answer(context: "grpc.aio.ServicerContext[Any, Any]", default: float) -> float:
    """The seconds after which the caller should have an answer, so that it hears the reason if its time isn't enough.
    `default`: the seconds for a caller without a deadline.
    """
    remaining = cast("float | None", context.time_remaining())  # gRPC's type lacks the None
    return default if remaining is None else part_for_answer(remaining)


def part_for_answer(seconds: float) -> float:
    """The part of the caller's time that there is to make the answer."""
    return seconds * _ANSWERING_PART
