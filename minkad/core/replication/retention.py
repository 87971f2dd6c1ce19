"""Decides how far a replica's log may be trimmed."""

from bisect import bisect_right
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

_FLUSHES_KEPT: Final = 4  # flushes that are remembered; the log waits for a late reader until it has missed them all


class CopyLog(NamedTuple):
    """The log that is kept for one copy, in bytes."""

    kept: int  # about; it is known only at flushes
    most: int  # with more than this, the log is no longer kept for the copy


class _Copy:
    """The log that is kept for one copy. `flushes`: for each flush since the copy began, in order, the flushed offset
    and the bytes that were applied by then.
    """

    __slots__ = ("flushes", "most_bytes")

    def __init__(self, most_bytes: int, flushes: list[tuple[int, int]]) -> None:
        self.most_bytes = most_bytes
        self.flushes = flushes

    def kept(self, needed: int, applied_bytes: int) -> int:
        """The bytes applied after the last flush at or before the offset `needed`, so about those after `needed`."""
        return applied_bytes - self.flushes[self._last_before(needed)][1]

    def flushed(self, offset: int, applied_bytes: int, needed: int) -> None:
        """Note a flush, and forget the flushes before the last one at or before `needed`."""
        if offset > self.flushes[-1][0]:
            self.flushes.append((offset, applied_bytes))
        del self.flushes[: self._last_before(needed)]

    def _last_before(self, needed: int) -> int:
        return max(bisect_right(self.flushes, needed, key=lambda flush: flush[0]) - 1, 0)


class Retention:
    """Finds the base, the offset up to which the log may be trimmed: the entries up to there are flushed here, and all
    readers have them.

    Each replica also keeps the entries of its last flush, since it may become leader: then it needs the entries that
    other replicas lack, or must send these replicas a checkpoint. Example, with flushes at 100, 200, 300 and 400:

        -----100-------200-------300-------400------> log.end
                                            ^ 400: the base of the only replica
                                  ^ 300: the base with other replicas
                             ^ 250: the base with a follower that has the log up to 250
              ^ 100: the base with a silent follower at 100; if it is at 99, it is forgotten, and gets a checkpoint
    """

    __slots__ = ("_applied_at_flushes", "_change_bytes", "_copies", "_flushes", "_late", "_needed", "applied_bytes")

    def __init__(self, change_bytes: int) -> None:
        """`change_bytes`: keep the newest entries, at least this many bytes of them, for readers of changes."""
        self.applied_bytes = 0  # the size of the entries and the loads' files applied since the node's start
        self._change_bytes = change_bytes
        # Flushed offsets with `applied_bytes` then, for readers of changes; empty if `change_bytes` is 0.
        self._applied_at_flushes: list[tuple[int, int]] = []
        self._flushes: tuple[int, ...] = ()  # the last flushed offsets, growing, at most `_FLUSHES_KEPT`
        self._needed: dict[str, int] = {}  # reader -> offset; it has the entries up to there, and needs the others
        # Silent readers: the log waits for each during at most `_FLUSHES_KEPT` flushes. (A tuple and a frozenset, since
        # an empty one takes no memory, and a node may have many empty replicas.)
        self._late: frozenset[str] = frozenset()
        self._copies: dict[str, _Copy] = {}  # by follower that gets a copy, or catches up after it; all in `_needed`

    @property
    def readers(self) -> Collection[str]:
        """The followers and merges for which the log is kept."""
        return self._needed.keys()

    def keep_for(self, reader: str, offset: int) -> None:
        """A follower or a merge has everything up to `offset`, and needs the entries after it."""
        self._needed[reader] = offset

    def keep_for_copy(self, reader: str, offset: int, most_bytes: int) -> None:
        """A follower gets a copy, and needs the entries after `offset`. The log keeps them until `copied`, but at most
        `most_bytes` of them.
        """
        self.keep_for(reader, offset)
        self.in_time(reader)
        self._copies[reader] = _Copy(most_bytes, [(offset, self.applied_bytes)])

    def copied(self, reader: str) -> None:
        """The follower has caught up. From now on the log is kept for it without a bound, as for other followers."""
        self._copies.pop(reader, None)

    def copy_log(self, reader: str) -> CopyLog | None:
        """The log that is kept for a follower that gets a copy; None if none is kept."""
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
        """The reader is silent: wait for it during at most `_FLUSHES_KEPT` flushes."""
        if reader in self._needed:
            self._late |= {reader}

    def in_time(self, reader: str) -> None:
        """The reader is no longer silent."""
        self._late -= {reader}

    def begin_again(self) -> None:
        """The node makes the data again from the log: forget all flushes."""
        self._flushes = ()

    def flushed_to(self, flushed: int, log_base: int, *, is_alone: bool) -> int:
        """The data is flushed up to `flushed`. Forgets the readers that are too late, and the copies that need too much
        log. Returns the offset up to which the log may be trimmed. `is_alone`: this is the partition's only replica.
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
        """The last flushed offset after which at least `change_bytes` were applied; the log's base if none is known."""
        if not self._change_bytes:
            return flushed
        if not self._applied_at_flushes or self._applied_at_flushes[-1][0] < flushed:
            self._applied_at_flushes.append((flushed, self.applied_bytes))
        found = log_base
        while self._applied_at_flushes and self.applied_bytes - self._applied_at_flushes[0][1] >= self._change_bytes:
            found, _ = self._applied_at_flushes.pop(0)
        return found
