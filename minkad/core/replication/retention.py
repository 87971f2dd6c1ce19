"""Says how much of a replica's log is kept."""

from bisect import bisect_right
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

_FLUSHES_KEPT: Final = 4


class CopyLog(NamedTuple):
    """The log that is kept for one copy, in bytes: about how much, and how much at most."""

    kept: int
    most: int


class _Copy:
    """The log that is kept for one copy. `flushes`: the offset of each flush since it began, and the bytes applied by
    then, in order.
    """

    __slots__ = ("flushes", "most_bytes")

    def __init__(self, most_bytes: int, flushes: list[tuple[int, int]]) -> None:
        self.most_bytes = most_bytes
        self.flushes = flushes

    def kept(self, needed: int, applied_bytes: int) -> int:
        """About how many bytes were applied after the offset `needed`."""
        return applied_bytes - self.flushes[self._last_before(needed)][1]

    def flushed(self, offset: int, applied_bytes: int, needed: int) -> None:
        """Note a flush, and forget those that are no longer needed."""
        if offset > self.flushes[-1][0]:
            self.flushes.append((offset, applied_bytes))
        del self.flushes[: self._last_before(needed)]

    def _last_before(self, needed: int) -> int:
        return max(bisect_right(self.flushes, needed, key=lambda flush: flush[0]) - 1, 0)


class Retention:
    """The log is trimmed up to the last entry that is flushed here and that all followers have. Replicas keep the log
    of a few more flushes: the next leader needs the entries that others lack, or must send them a checkpoint.
    """

    __slots__ = ("_applied_at_flushes", "_change_bytes", "_copies", "_flushes", "_late", "_needed", "applied_bytes")

    def __init__(self, change_bytes: int) -> None:
        """`change_bytes`: this many bytes of the newest entries are kept for readers of changes."""
        self.applied_bytes = 0  # applied since the node's start
        self._change_bytes = change_bytes
        # Most replicas may be empty, and an empty one takes next to no memory.
        self._applied_at_flushes: list[tuple[int, int]] = []  # offsets of flushes, and `applied_bytes` then
        self._flushes: tuple[int, ...] = ()  # offsets of the last of them
        self._needed: dict[str, int] = {}  # reader -> offset; it has everything up to there, and needs the rest
        self._late: frozenset[str] = (
            frozenset()
        )  # the readers in `_needed` for which the log waits a few flushes at most
        self._copies: dict[str, _Copy] = {}  # by follower that gets a copy, or catches up after it

    @property
    def readers(self) -> Collection[str]:
        """The followers and merges for which the log is kept."""
        return self._needed.keys()

    def keep_for(self, reader: str, offset: int) -> None:
        """A follower or a merge has everything up to `offset`, and needs the entries after it."""
        self._needed[reader] = offset

    def keep_for_copy(self, reader: str, offset: int, most_bytes: int) -> None:
        """A follower gets a copy, and needs the entries after `offset`. They are kept until `copied`, but at most
        `most_bytes` of them.
        """
        self.keep_for(reader, offset)
        self.in_time(reader)
        self._copies[reader] = _Copy(most_bytes, [(offset, self.applied_bytes)])

    def copied(self, reader: str) -> None:
        """The follower has caught up: the log is kept for it as for others."""
        self._copies.pop(reader, None)

    def copy_log(self, reader: str) -> CopyLog | None:
        """The log kept for a follower that gets a copy; None if none is kept, or it is no longer kept."""
        copy = self._copies.get(reader)
        return None if copy is None else CopyLog(copy.kept(self._needed[reader], self.applied_bytes), copy.most_bytes)

    def copies(self) -> Iterator[tuple[str, CopyLog]]:
        """The followers for which log is kept, with the `copy_log` of each."""
        for reader, copy in self._copies.items():
            yield reader, CopyLog(copy.kept(self._needed[reader], self.applied_bytes), copy.most_bytes)

    def release(self, reader: str) -> None:
        """The reader no longer needs anything."""
        self._needed.pop(reader, None)
        self._copies.pop(reader, None)
        self._late -= {reader}

    def late(self, reader: str) -> None:
        """The reader is silent: wait for it a few flushes at most."""
        if reader in self._needed:
            self._late |= {reader}

    def in_time(self, reader: str) -> None:
        """The reader is heard from again."""
        self._late -= {reader}

    def begin_again(self) -> None:
        """The data is made again from the log: forget all flushes."""
        self._flushes = ()

    def base(self, flushed: int, log_base: int, *, is_alone: bool) -> int:
        """The offset up to which the log may be trimmed, with the data flushed up to `flushed`. `is_alone`: this is the
        partition's only replica.
        """
        if not self._flushes or self._flushes[-1] < flushed:
            self._flushes = (*self._flushes, flushed)[-_FLUSHES_KEPT:]
        base = flushed
        if not is_alone:
            base = self._flushes[-2] if len(self._flushes) > 1 else 0
        for reader in self._late:
            if len(self._flushes) == _FLUSHES_KEPT and self._needed.get(reader, base) < self._flushes[0]:
                del self._needed[reader]
                self._copies.pop(reader, None)
        for reader, copy in list(self._copies.items()):
            if copy.kept(self._needed[reader], self.applied_bytes) > copy.most_bytes:
                self.release(reader)
            else:
                copy.flushed(flushed, self.applied_bytes, self._needed[reader])
        return min([base, *self._needed.values(), self._base_for_changes(flushed, log_base)])

    def _base_for_changes(self, flushed: int, log_base: int) -> int:
        """The offset of the last flush after which `change_bytes` or more were applied; the log's base if none is
        known.
        """
        if not self._change_bytes:
            return flushed
        if not self._applied_at_flushes or self._applied_at_flushes[-1][0] < flushed:
            self._applied_at_flushes.append((flushed, self.applied_bytes))
        found = log_base
        while self._applied_at_flushes and self.applied_bytes - self._applied_at_flushes[0][1] >= self._change_bytes:
            found, _ = self._applied_at_flushes.pop(0)
        return found
