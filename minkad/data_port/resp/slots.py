"""Places in the order of a connection's answers. A slot is filled when its answer is known."""

from collections.abc import Callable, Sequence
from typing import Protocol

from minka.wire.key_operations import Outcome
from minka.wire.kv_frames import MAX_ANSWER_BYTES
from minkad.data_port.resp.replies import OK, RespError, answer_too_large, internal
from minkad.process.memory import Share


class Owner(Protocol):
    """The connection, or a slot whose answer consists of the answers of other slots."""

    reads: int
    """Slots that wait for a read: no later write may begin."""
    writes: int
    """Slots that wait for a write: no later read may begin."""

    def filled(self, slot: "Slot") -> None:
        """The slot has its answer."""


class Slot:
    """A future answer."""

    __slots__ = ("answer", "is_write", "owner")

    def __init__(self, owner: Owner, *, is_write: bool) -> None:
        self.answer: bytes | None = None
        self.owner = owner
        self.is_write = is_write
        if is_write:
            owner.writes += 1
        else:
            owner.reads += 1

    def fill(self, answer: bytes) -> None:
        """The answer is known."""
        self.answer = answer
        if self.is_write:
            self.owner.writes -= 1
        else:
            self.owner.reads -= 1
        self.owner.filled(self)

    def fail(self, error: RespError) -> None:
        """The answer is an error."""
        self.fill(error.encoded)


class SetSlot(Slot):
    """The answers to consecutive commands that set one key each: `+OK` for each."""

    __slots__ = ("count",)

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner, is_write=True)
        self.count = 1

    @property
    def entries(self) -> int:
        """The number of its entries in the batch."""
        return self.count

    def written(self) -> None:
        """All keys are set."""
        self.fill(OK * self.count)

    def done(self, _: Sequence[Outcome]) -> None:
        """All keys are set, in a batch of operations."""
        self.fill(OK * self.count)

    def refused(self, errors: Sequence[RespError]) -> None:
        """No key is set, or the outcome is unknown."""
        self.fill(b"".join([error.encoded for error in errors]))


class Taker(Protocol):
    """Takes the results of some neighbouring entries of a batch."""

    @property
    def entries(self) -> int:
        """The number of entries."""

    def written(self) -> None:
        """The entries were plain writes, which are done."""

    def done(self, outcomes: Sequence[Outcome]) -> None:
        """The entries were operations, with these outcomes."""

    def refused(self, errors: Sequence[RespError]) -> None:
        """The entries were not done, or the outcome is unknown. There is an error for each entry."""


class Joined(Slot):
    """One answer from the results of several parts. Each result has a position."""

    __slots__ = ("_error", "_finish", "_kept", "_missing", "_share", "results")

    def __init__(
        self,
        owner: Owner,
        count: int,
        finish: Callable[[list[object]], bytes],
        *,
        is_write: bool,
        share: Share | None = None,
    ) -> None:
        """`finish` makes the answer from `count` results, and may raise RespError. Results that wait for others take
        memory from `share`.
        """
        super().__init__(owner, is_write=is_write)
        self.results: list[object] = [None] * count
        self._missing = count  # results, or errors, that have not come
        self._finish = finish
        self._error: RespError | None = None
        self._share = share
        self._kept = 0  # bytes taken from the share

    @property
    def lost(self) -> RespError | None:
        """The error that is the answer, whatever comes; None while further results count."""
        if self._error is None and self._share is not None and self._share.is_closed:
            self._error = RespError("ERR the connection is closed")
        return self._error

    def have(self, positions: Sequence[int], results: Sequence[object], size: int = 0) -> None:
        """Results of `size` bytes have come."""
        if self._share is not None:
            if self._kept + size > MAX_ANSWER_BYTES:
                self.results = [None] * len(self.results)
                self._error = self._error or answer_too_large()
            if len(positions) < self._missing:
                self._kept += size
                self._share.take_until_answered(size)
        if self._error is None:
            for position, result in zip(positions, results, strict=True):
                self.results[position] = result
        self._came(len(positions))

    def lack(self, positions: Sequence[int], error: RespError) -> None:
        """An error has come instead of these results. The answer is the first error."""
        self._error = self._error or error
        self._came(len(positions))

    def _came(self, count: int) -> None:
        self._missing -= count
        if self._missing:
            return
        answer = self._error.encoded if self._error is not None else self._made()
        if self._share is not None:
            self._share.take_until_answered(-self._kept)
        # The objects behind these references may refer to this slot: a cycle, which would need garbage collection.
        self._finish, self.results = _is_over, []
        self.fill(answer)

    def _made(self) -> bytes:
        try:
            return self._finish(self.results)
        except RespError as error:
            return error.encoded
        except Exception as error:  # noqa: BLE001 - a bug ends nothing else
            return internal(error).encoded


def _is_over(_: list[object]) -> bytes:
    return b""


class Parts(Protocol):
    """Something that several parts make together."""

    def have(self, positions: Sequence[int], results: Sequence[object], size: int = 0) -> None:
        """Results have come."""

    def lack(self, positions: Sequence[int], error: RespError) -> None:
        """An error has come instead of these results."""


class Results(Parts, Protocol):
    """The results of reads that are done one after the other."""

    @property
    def lost(self) -> RespError | None:
        """The error with which the other reads can be given up; None while their results count."""


class Part:
    """The entries of one batch that belong to a larger answer: a `Taker`."""

    __slots__ = ("_joined", "_positions")

    def __init__(self, joined: Parts, positions: Sequence[int]) -> None:
        self._joined = joined
        self._positions = positions

    @property
    def entries(self) -> int:
        """The number of entries."""
        return len(self._positions)

    def written(self) -> None:
        """Plain writes have no result."""
        self._joined.have(self._positions, [None] * len(self._positions))

    def done(self, outcomes: Sequence[Outcome]) -> None:
        """Pass the outcomes on."""
        self._joined.have(self._positions, outcomes)

    def refused(self, errors: Sequence[RespError]) -> None:
        """Pass the first error on."""
        self._joined.lack(self._positions, errors[0])


class Divided:
    """Gathers the results of a taker's entries, which now belong to several partitions, and are sent one by one."""

    __slots__ = ("_errors", "_is_plain", "_missing", "_outcomes", "_taker")

    def __init__(self, taker: Taker, count: int, *, is_plain: bool) -> None:
        self._taker = taker
        self._is_plain = is_plain
        self._missing = count
        self._outcomes: list[Outcome] = [Outcome(False)] * count
        self._errors: list[RespError] = []

    def have(self, positions: Sequence[int], results: Sequence[object], size: int = 0) -> None:
        """Outcomes have come."""
        for position, result in zip(positions, results, strict=True):
            if isinstance(result, Outcome):
                self._outcomes[position] = result
        self._came(len(positions))

    def lack(self, positions: Sequence[int], error: RespError) -> None:
        """An error has come instead of these outcomes."""
        self._errors.append(error)
        self._came(len(positions))

    def _came(self, count: int) -> None:
        self._missing -= count
        if self._missing:
            return
        if self._errors:
            self._taker.refused(self._errors[:1] * len(self._outcomes))
        elif self._is_plain:
            self._taker.written()
        else:
            self._taker.done(self._outcomes)
