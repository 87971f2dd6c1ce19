"""The time that a call has for its answer."""

from typing import Any, Final, cast

import grpc

MAX_TIMEOUT_S: Final = 60.0  # of a call that waits for the active controller
_DEFAULT_TIMEOUT_S: Final = 10.0  # of a call that waits for the active controller, and has no deadline
_ANSWERING_PART: Final = 0.95  # of the caller's time; the rest is for the way back


def time_to_answer(context: "grpc.aio.ServicerContext[Any, Any]", default: float) -> float:
    """The seconds within which to answer: less than the caller's time, so that a caller whose time isn't enough still
    hears the reason. `default`: the seconds for a caller without a deadline.
    """
    remaining = cast("float | None", context.time_remaining())  # gRPC's type lacks the None
    return default if remaining is None else part_for_answer(remaining)


def part_for_answer(seconds: float) -> float:
    """The part of the caller's time in which to answer."""
    return seconds * _ANSWERING_PART


def time_for_controller(context: "grpc.aio.ServicerContext[Any, Any]") -> float:
    """The seconds within which to return the active controller's answer."""
    return min(time_to_answer(context, _DEFAULT_TIMEOUT_S), MAX_TIMEOUT_S)
