"""The effects on rows of the entries that a leader has appended but not applied yet."""

from collections.abc import Iterable

from minka.wire.kv_frames import GroupResult, StoredWrite, WriteBody
from minka.wire.stored_values import head, version_at
from minkad.replication.serving.ticket import Ticket

Waiting = tuple[Ticket, int, GroupResult]  # an answer, and the index of its group


class Unapplied:
    """The newest unapplied row of each key, and the answers that wait for an entry. A replica has this object only
    while operations need it, so that plain writes stay cheap.
    """

    __slots__ = ("_rows", "_waiting")

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[int, bytes | None]] = {}  # key -> (offset of the newest entry, stored row)
        self._waiting: dict[int, list[Waiting]] = {}  # by the offset for which they wait

    def appended(self, offset: int, write: WriteBody, version: int) -> None:
        """The write was appended. Its rows get this version; those of a StoredWrite already have versions."""
        rows: Iterable[bytes | None] = write.values
        if not isinstance(write, StoredWrite):
            first = head(version_at(version))
            rows = [None if value is None else first + value for value in write.values]
        self._rows.update((key, (offset, row)) for key, row in zip(write.keys, rows, strict=True))

    def find(self, key: bytes) -> tuple[int, bytes | None] | None:
        """The offset of the newest unapplied entry with this key, and the row that the entry makes (None: the entry
        deletes the key). None if no unapplied entry has the key.
        """
        return self._rows.get(key)

    def wait(self, offset: int, waiting: Waiting) -> None:
        """Let an answer wait until the entry at this offset is applied."""
        self._waiting.setdefault(offset, []).append(waiting)

    def applied(self, offset: int, write: WriteBody) -> None:
        """The entry is applied: give out the answers that wait for it."""
        for key in write.keys:
            row = self._rows.get(key)
            if row is not None and row[0] == offset:
                del self._rows[key]
        for ticket, index, result in self._waiting.pop(offset, ()):
            ticket.fill(index, result)

    def waiting(self) -> list[Waiting]:
        """All answers that wait."""
        return [one for those in self._waiting.values() for one in those]
