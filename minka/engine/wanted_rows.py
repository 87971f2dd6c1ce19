"""The rows of the partition table that a client wants, and those that it has. Pure."""

from dataclasses import dataclass, field
from typing import Final

from minka.cluster.key_ranges import is_by_ranges
from minka.v1.admin_pb2 import GetTableRequest, WantedRows
from minka.v1.cluster_pb2 import Keyspace

WHOLE_UP_TO: Final = 1000  # if a keyspace by hash has more partitions than this, the client asks only for needed rows
MAX_SLOTS: Final = 4000  # a client that needs more rows of a keyspace than this asks for all of its rows


@dataclass(slots=True)
class _Rows:
    """Rows of one keyspace: all of them if `whole` is true, else those of `slots`."""

    whole: bool = False
    slots: set[int] = field(default_factory=set)


class Wanted:
    """The keyspaces that the client uses. Of a large keyspace by hash, the client asks only for the rows of the slots
    that it has needed.
    """

    def __init__(self) -> None:
        self._has: dict[str, _Rows] = {}
        self._lacks: dict[str, _Rows] = {}

    def has(self, keyspace: str) -> bool:
        """True if an answer with the keyspace has come. Of a large keyspace by hash, rows of single slots may still be
        missing.
        """
        return keyspace in self._has

    def lacks(self, keyspace: str) -> bool:
        """True if rows of the keyspace are missing."""
        return keyspace in self._lacks

    def need(self, keyspace: str) -> None:
        """Note that the client uses the keyspace."""
        if keyspace not in self._has:
            self._lacks.setdefault(keyspace, _Rows())

    def need_slot(self, keyspace: str, slot: int) -> bool:
        """Note that the client uses this slot; return True if its row is missing."""
        has = self._has.get(keyspace, _Rows())
        if has.whole or slot in has.slots:
            return False
        lacks = self._lacks.setdefault(keyspace, _Rows())
        lacks.slots.add(slot)
        lacks.whole = lacks.whole or len(has.slots) + len(lacks.slots) > MAX_SLOTS
        return True

    def forget(self, keyspace: str) -> None:
        """Forget a keyspace that doesn't exist."""
        self._has.pop(keyspace, None)
        self._lacks.pop(keyspace, None)

    def missing(self) -> GetTableRequest | None:
        """The request for the rows that have not come; None if all have come."""
        if not self._lacks:
            return None
        keyspaces = [_asked(name, rows) for name, rows in self._lacks.items()]
        return GetTableRequest(keyspaces=keyspaces, accepts_zlib=True)

    def newer(self, version: int, cluster_id: str) -> GetTableRequest:
        """The request for the rows that have changed since a version."""
        keyspaces = [_asked(name, rows) for name, rows in self._has.items()]
        return GetTableRequest(known_version=version, known_cluster=cluster_id, keyspaces=keyspaces, accepts_zlib=True)

    def came(self, request: GetTableRequest, keyspaces: list[Keyspace]) -> None:
        """Note that the rows that this request asks for have come. `keyspaces` are the keyspaces in the answer: rows of
        any other keyspace still count as missing.
        """
        known = {keyspace.name: keyspace for keyspace in keyspaces}
        for asked in request.keyspaces:
            keyspace = known.get(asked.keyspace)
            if keyspace is None:
                continue
            has, lacks = self._has.setdefault(keyspace.name, _Rows()), self._lacks.get(keyspace.name, _Rows())
            if is_by_ranges(keyspace) or keyspace.partition_count <= asked.whole_up_to or not asked.whole_up_to:
                has.whole = True
                has.slots.clear()
            else:
                has.slots.update(asked.slots)
                lacks.slots -= has.slots
            if has.whole or not (lacks.whole or lacks.slots):
                self._lacks.pop(keyspace.name, None)


def _asked(keyspace: str, rows: _Rows) -> WantedRows:
    if rows.whole:
        return WantedRows(keyspace=keyspace)
    return WantedRows(keyspace=keyspace, whole_up_to=WHOLE_UP_TO, slots=sorted(rows.slots))
