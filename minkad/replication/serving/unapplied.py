"""The effects on rows of the entries that a leader has appended but not applied yet."""

from collections.abc import Iterable

from minka.wire.kv_frames import GroupResult, StoredWrite, WriteBody
from minka.wire.stored_values import head, version_at
from minkad.replication.serving.ticket import Ticket

Waiting = tuple[Ticket, int, GroupResult]  # an answer, and the index of its group


class Unapplied:
    """The newest rows by key, and answers that wait for an entry. A replica has one only while operations need it, so
    that plain writes cost nothing more.
    """

    __slots__ = ("_rows", "_waiting")

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[int, bytes | None]] = {}  # with the offset of the entry
        self._waiting: dict[int, list[Waiting]] = {}  # by offset

    def appended(self, offset: int, write: WriteBody, version: int) -> None:
        """The write was appended; its rows get this version, unless they have one already."""
        rows: Iterable[bytes | None] = write.values
        if not isinstance(write, StoredWrite):
            first = head(version_at(version))
            rows = [None if value is None else first + value for value in write.values]
        self._rows.update((key, (offset, row)) for key, row in zip(write.keys, rows, strict=True))

    def find(self, key: bytes) -> tuple[int, bytes | None] | None:
        """The row as it will be (None: deleted), and the offset of the entry that makes it so; None if no unapplied
        entry has the key.
        """
        return self._rows.get(key)

    def wait(self, offset: int, waiting: Waiting) -> None:
        """Let an answer wait until the entry at this offset is applied."""
        self._waiting.setdefault(offset, []).append(waiting)

    def applied(self, offset: int, write: WriteBody) -> None:
        """The entry is applied: answer those that wait for it."""
        for key in write.keys:
            row = self._rows.get(key)
            if row is not None and row[0] == offset:
                del self._rows[key]
        for ticket, index, result in self._waiting.pop(offset, ()):
            ticket.fill(index, result)

    def waiting(self) -> list[Waiting]:
        """All answers that wait."""
        return [one for those in self._waiting.values() for one in those]
