"""The results of one request of a client."""

from collections.abc import Callable

from minka.errors import Code, MinkaError, error_to_proto
from minka.wire import kv_frames
from minka.wire.kv_frames import GroupResult
from minkad.process.memory import Share


class Ticket:
    """The results of one request's groups. The ticket calls `on_done` once it has all of them."""

    __slots__ = ("_leave", "_max_bytes", "_on_done", "began", "missing", "results", "share", "size")

    def __init__(
        self,
        count: int,
        share: Share,
        began: float,
        on_done: Callable[["Ticket"], None],
        leave: Callable[["Ticket"], None],
        max_bytes: int = kv_frames.MAX_ANSWER_BYTES,
    ) -> None:
        """`leave` is called before `on_done`: the ticket no longer waits."""
        self.share = share  # the memory from which the bodies of answers are taken
        self._max_bytes = min(max_bytes, kv_frames.MAX_ANSWER_BYTES)  # for all bodies together
        self.began = began  # the time of the request, by the node's clock
        self.size = 0  # of the bodies so far, in bytes
        self.results: list[GroupResult | None] = [None] * count  # by group; None: missing
        self.missing = count  # the groups without a result
        self._on_done = on_done
        self._leave = leave

    @property
    def answers(self) -> list[GroupResult]:
        """The results of a ticket that is done."""
        return [result for result in self.results if result is not None]

    @property
    def left(self) -> int:
        """The bytes that the missing bodies may have."""
        return self._max_bytes - self.size

    def has_room(self, size: int) -> bool:
        """True if there is memory for an answer of this size now. If not, the group may wait, unless this ticket has
        answers already: then raises OVERLOADED. The ticket's answers leave together, so their memory would stay taken
        during the wait, and other requests would wait for it.
        """
        if self.share.has_room(size, self.size):
            return True
        if self.size:
            raise no_memory()
        return False

    def fill(self, index: int, result: GroupResult) -> None:
        """Set the result of a group; only the first result counts."""
        if self.results[index] is not None:
            return
        self.results[index] = result
        self.missing -= 1
        if not self.missing:
            self._leave(self)
            self._on_done(self)

    def answer(self, index: int, body: bytes) -> None:
        """Set the body of a group's result. Raises TOO_LARGE if the answer would be too large."""
        if self.results[index] is None:
            self.fill(index, self.reserve(body))

    def reserve(self, body: bytes) -> GroupResult:
        """Return a result with this body, for `fill` later. Raises TOO_LARGE if the answer would be too large."""
        if len(body) > self.left:
            raise too_large()
        self.size += len(body)
        self.share.take(len(body))
        return GroupResult(None, body)

    def fail(self, index: int, error: MinkaError) -> None:
        """The group was refused or failed."""
        self.fill(index, GroupResult(error_to_proto(error).SerializeToString(), None))


def too_large() -> MinkaError:
    """The error for an answer above the maximum size."""
    return MinkaError(Code.TOO_LARGE, f"an answer of more than {kv_frames.MAX_ANSWER_BYTES >> 20} MiB")


def no_memory() -> MinkaError:
    """The error for an answer without memory for it."""
    return MinkaError(Code.OVERLOADED, "answers that clients have not taken yet leave no memory for this one")
