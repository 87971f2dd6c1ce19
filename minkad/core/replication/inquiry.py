"""A request to the active controller, repeated until its outcome is known."""

from collections.abc import Collection
from enum import Enum, auto
from typing import Final

from minka.errors import Code, MinkaError
from minkad.core.replication.replication_settings import ReplicationSettings

# With these answers, the controller has refused the request: it has recorded nothing.
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
    STALE = auto()  # the answer is for an earlier request
    RECORDED = auto()
    REFUSED = auto()  # the controller has recorded nothing
    UNKNOWN = auto()  # the controller may have recorded the request: ask again at `due_at`


class Inquiry:
    """A refusal after a try with an unknown outcome is in doubt: perhaps the controller recorded that try, and refuses
    the repetition because of it. For example, the new row makes the request's partition_epoch stale.
    """

    def __init__(self, settings: ReplicationSettings, refusals: Collection[Code] = REFUSALS) -> None:
        self.due_at = 0.0  # the time of the next try
        self._request: object | None = None  # sent, and not answered yet
        self._is_in_doubt = False  # a try had an unknown outcome, so this inquiry can no longer end as REFUSED
        self._refusals = refusals
        self._backoff = settings.first_backoff  # the next pause; doubles each time, up to `_longest_backoff`
        self._longest_backoff = settings.longest_backoff

    def is_due(self, now: float) -> bool:
        """True if it is time to ask."""
        return self._request is None and now >= self.due_at

    def asked(self, request: object) -> None:
        """The request was sent."""
        assert self._request is None, "one request at a time"
        self._request = request

    def answered(self, request: object, error: MinkaError | None, now: float) -> Outcome:
        """Return the outcome. `error` is the controller's answer; None: the controller has recorded the request."""
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
