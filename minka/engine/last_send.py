"""The time from which a refused request isn't repeated. Pure."""

from typing import Final

_ANSWER_S: Final = 0.2  # a node answers within this time, unless something hangs


def last_send(deadline: float, timeout: float) -> float:
    """The latest time to repeat a request that was refused, if its call has `timeout` seconds and ends at `deadline`.

    A write that is sent later may have no answer at the deadline. Its outcome would then be unknown, although every
    node that answered did nothing. Example: if `timeout` is 1 s, nothing is repeated in the last 0.1 s.
    """
    return deadline - min(_ANSWER_S, timeout / 10)
