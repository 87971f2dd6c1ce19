"""The results of one request of a client."""

from collections.abc import Callable

from minka.errors import Code, MinkaError, error_to_proto
from minka.wire import kv_frames
from minka.wire.kv_frames import GroupResult
from minkad.process.memory import Share


class Ticket:
    """The results of one request's groups; it calls its owner when it has them all."""

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
        """The bodies of answers are taken from `share`. `began`: when the request came, by the node's clock. `leave` is
        called before `on_done`: the ticket no longer waits. `max_bytes` bounds all bodies together.
        """
        self.share = share
        self._max_bytes = min(max_bytes, kv_frames.MAX_ANSWER_BYTES)
        self.began = began
        self.size = 0  # the bodies so far, in bytes
        self.results: list[GroupResult | None] = [None] * count
        self.missing = count
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
        """True if there is memory for an answer of this size now. Raises OVERLOADED if there is none while other
        answers are here already: they leave all together, so a wait with them in hand would also hold up those that
        wait.
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
        """Set the values read for a group. Raises TOO_LARGE if the answer would be too large."""
        if self.results[index] is None:
            self.fill(index, self.reserve(body))

    def reserve(self, body: bytes) -> GroupResult:
        """A result with this body, to be filled in later. Raises TOO_LARGE if the answer would be too large."""
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
