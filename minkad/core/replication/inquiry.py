"""A request to the active controller, repeated until its outcome is known."""

from collections.abc import Collection
from enum import Enum, auto
from typing import Final

from minka.errors import Code, MinkaError
from minkad.core.replication.replication_settings import ReplicationSettings

# The controller's answers that are refusals: nothing was recorded.
REFUSALS: Final = frozenset(
    {
        Code.STALE_EPOCH,
        Code.STALE_GENERATION,
        Code.INELIGIBLE_REPLICA,
        Code.NOT_LEADER,
        Code.UNKNOWN_PARTITION,
        Code.UNKNOWN_NODE,
        Code.NOT_REGISTERED,
        Code.OVERLOADED,
        Code.INVALID_ARGUMENT,
    }
)


class Outcome(Enum):
    STALE = auto()  # the answer is not for the present request
    RECORDED = auto()
    REFUSED = auto()  # nothing was recorded
    UNKNOWN = auto()  # it may have been recorded: ask again at `due_at`


class Inquiry:
    """After a try with an unknown outcome no refusal is certain: that try may have caused it."""

    def __init__(self, settings: ReplicationSettings, refusals: Collection[Code] = REFUSALS) -> None:
        self.due_at = 0.0
        self._request: object | None = None
        self._is_in_doubt = False
        self._refusals = refusals
        self._backoff = settings.first_backoff
        self._longest_backoff = settings.longest_backoff

    def is_due(self, now: float) -> bool:
        """True if it is time to ask."""
        return self._request is None and now >= self.due_at

    def asked(self, request: object) -> None:
        """The request was sent."""
        assert self._request is None, "one request at a time"
        self._request = request

    def answered(self, request: object, error: MinkaError | None, now: float) -> Outcome:
        """The outcome by the controller's answer; `error` is None if it was recorded."""
        if request is not self._request:
            return Outcome.STALE
        self._request = None
        self.due_at = now + self._backoff
        self._backoff = min(2 * self._backoff, self._longest_backoff)
        if error is None:
            return Outcome.RECORDED
        if error.code in self._refusals and not self._is_in_doubt:
            return Outcome.REFUSED
        self._is_in_doubt = True
        return Outcome.UNKNOWN
