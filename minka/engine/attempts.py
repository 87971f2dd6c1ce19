"""Decides which node a request asks next, until a node takes the request. Pure: the caller asks, waits, and tells the
time.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from minka.engine.grpc_calls import unreachable
from minka.engine.last_send import last_send
from minka.errors import Code, MinkaError

_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 0.5
_MIN_SHARE_S: Final = 0.02
# The active controller's refusals with these codes are final although the codes are retriable: a moment later the
# controller would decide the same.
_DECIDED: Final = (Code.DISK_LOW,)


class Attempts:
    """The attempts of one request. `first` is the address to ask first, "" if none is known. If a refusal names the
    active controller's address, this address becomes `first`, and the caller's next request can begin with it. `tried`
    has the failures of this round, by address.
    """

    def __init__(
        self, endpoints: Sequence[str], first: str, now: float, timeout: float, *, is_repeatable: bool
    ) -> None:
        self.first = first
        self.tried: dict[str, MinkaError] = {}
        self._endpoints: Final = endpoints
        self._is_repeatable: Final = is_repeatable  # True: a repetition is safe even if the answer was lost
        self._timeout: Final = timeout
        self._deadline: Final = now + timeout
        self._pause = _FIRST_PAUSE_S
        self._queue = self._round()

    def _round(self) -> deque[str]:
        return deque([self.first, *self._endpoints] if self.first else self._endpoints)

    def next(self, now: float) -> tuple[str, float] | None:
        """The address to ask, and the seconds that the answer may take; None once every address was asked in this
        round.
        """
        while self._queue:
            address = self._queue.popleft()
            if address not in self.tried:
                others = {*self._queue} - {address, *self.tried}
                shares = len(others) + 1 if self._is_repeatable else 1
                return address, max((self._deadline - now) / shares, _MIN_SHARE_S)
        return None

    def goes_on(self, address: str, error: MinkaError) -> bool:
        """Note the failure of the attempt at this address. Returns False if the whole request fails with this error, so
        that no other node is asked.
        """
        is_late = self._is_repeatable and error.code is Code.DEADLINE_EXCEEDED
        if error.code in _DECIDED or not (error.code.info.retriable or is_late):
            return False
        self.tried[address] = error
        if address == self.first:
            self.first = ""
        if leader := error.details.get("leader_address", ""):
            self.first = leader
            self._queue.appendleft(leader)
        return True

    def pause(self, now: float) -> float:
        """The seconds to wait before another round, which begins with `next`. Raises the error of this round if no node
        could be reached, or if it is too late for another round.
        """
        somebody_is_there = any(error.code is not Code.UNREACHABLE for error in self.tried.values())
        if not somebody_is_there or now + self._pause > last_send(self._deadline, self._timeout):
            raise unreachable(self.tried)
        self.tried, self._queue = {}, self._round()
        pause, self._pause = self._pause, min(2 * self._pause, _MAX_PAUSE_S)
        return pause
