"""The rows of partitions, and indexes of them."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Final, Self, TypeVar, overload

from minka.v1.cluster_pb2 import (
    PARTITION_STATE_NEW,
    PARTITION_STATE_OFFLINE,
    Partition,
)

_WITHOUT_LEADER: Final = (PARTITION_STATE_NEW, PARTITION_STATE_OFFLINE)
_NO_PARTITION: Final = Partition()

K = TypeVar("K")
V = TypeVar("V")
Ids = dict[int, None]  # a set that keeps the order in which the ids came


class Partitions(MutableMapping[int, Partition]):
    """Rows by id, and indexes. Rows are kept encoded, in a tenth of the memory that messages need; the decoding of a
    row takes a third of a microsecond. Each reader gets a row of its own, and may change it. To put or remove a row
    also updates the indexes.
    """

    __slots__ = ("_encoded", "_order", "copies", "leaderless", "led", "merging", "of_keyspace", "splitting", "yielding")

    def __init__(self) -> None:
        self._encoded: dict[int, bytes] = {}
        # For each keyspace by ranges with several partitions: (first key, id) of each, in the order of the keys.
        self._order: dict[int, list[tuple[bytes, int]]] = {}
        self.copies: dict[str, Ids] = {}
        """By node: the partitions of which the node is a replica or has to delete its copy, tombstones included."""
        self.led: dict[str, Ids] = {}
        """By node: the partitions that the node leads."""
        self.of_keyspace: dict[int, Ids] = {}
        """By keyspace: its partitions, in the order in which they were made."""
        self.leaderless: Ids = {}
        """The partitions that are NEW or OFFLINE."""
        self.yielding: Ids = {}
        """The partitions whose leader is to hand over to a successor."""
        self.splitting: Ids = {}
        """Both halves of each split that hasn't ended."""
        self.merging: Ids = {}
        """The partitions that are to get the range of the partition after them."""

    @classmethod
    def of_encoded(cls, rows: Iterable[bytes]) -> Self:
        """The partitions from the rows that `encoded` returned."""
        made = cls()
        for encoded in rows:
            row = Partition.FromString(encoded)
            made._encoded[row.id] = encoded
            made._index(_NO_PARTITION, row)
            made.index_copies(None, row)
        return made

    def copy(self) -> Self:
        """An independent copy of the rows."""
        made = type(self)()
        made._encoded = dict(self._encoded)
        made._order = {keyspace: list(order) for keyspace, order in self._order.items()}
        made.copies = {node: dict(ids) for node, ids in self.copies.items()}
        made.led = {node: dict(ids) for node, ids in self.led.items()}
        made.of_keyspace = {keyspace: dict(ids) for keyspace, ids in self.of_keyspace.items()}
        made.leaderless, made.yielding = dict(self.leaderless), dict(self.yielding)
        made.splitting, made.merging = dict(self.splitting), dict(self.merging)
        return made

    # A mapping of rows

    def __getitem__(self, id_: int) -> Partition:
        return Partition.FromString(self._encoded[id_])

    @overload
    def get(self, id_: int, default: None = None, /) -> Partition | None: ...
    @overload
    def get(self, id_: int, default: Partition | V, /) -> Partition | V: ...
    def get(self, id_: int, default: Partition | V | None = None, /) -> Partition | V | None:
        """Faster than `Mapping.get`, which catches an exception: each row that is sent or applied is read here."""
        encoded = self._encoded.get(id_)
        return default if encoded is None else Partition.FromString(encoded)

    def __contains__(self, id_: object) -> bool:
        return id_ in self._encoded

    def __len__(self) -> int:
        return len(self._encoded)

    def __iter__(self) -> Iterator[int]:
        return iter(self._encoded)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Partitions):
            return self._encoded == other._encoded
        return isinstance(other, Mapping) and dict(self) == other

    __hash__ = None  # type: ignore[assignment]

    def __setitem__(self, id_: int, row: Partition) -> None:
        assert id_ == row.id, row
        old = self.get(id_)
        self._encoded[id_] = row.SerializeToString()
        self._index(old or _NO_PARTITION, row)
        self.index_copies(old, row)

    def put(self, row: Partition) -> None:
        """Add a row, or replace the row with its id."""
        self[row.id] = row

    def __delitem__(self, id_: int) -> None:
        old = self[id_]
        del self._encoded[id_]
        self._index(old, _NO_PARTITION)
        self.index_copies(old, None)

    def encoded(self) -> Sequence[bytes]:
        """All rows as they are now, to be decoded later. This takes a millisecond for 100,000 rows."""
        return list(self._encoded.values())

    def decoded(self, ids: Iterable[int] | None = None) -> Iterator[Partition]:
        """The rows of those of these partitions that exist (None: of all), as of now. A row is decoded when the caller
        takes it.
        """
        if ids is None:
            return map(Partition.FromString, self.encoded())
        found = map(self._encoded.get, ids)
        return map(Partition.FromString, [row for row in found if row is not None])

    # Found by the rows' content

    def of(self, keyspace_id: int) -> Iterator[Partition]:
        """The partitions of the keyspace, in the order in which they were made."""
        return self.decoded(self.of_keyspace.get(keyspace_id, ()))

    def in_order(self, keyspace_id: int) -> list[int]:
        """The ids of the partitions of a keyspace by ranges, in the order of their keys."""
        order = self._order.get(keyspace_id)
        return list(self.of_keyspace.get(keyspace_id, ())) if order is None else [id_ for _, id_ in order]

    def at(self, keyspace_id: int, key: bytes) -> Partition:
        """The partition of a keyspace by ranges that has the key."""
        order = self._order.get(keyspace_id)
        if order is None:
            (id_,) = self.of_keyspace[keyspace_id]
            return self[id_]
        return self[order[bisect_right(order, key, key=_first_key) - 1][1]]

    def pair_at(self, keyspace_id: int, key: bytes) -> tuple[Partition, Partition] | None:
        """The partition that ends at the key, and the partition that begins there; None unless both exist."""
        order = self._order.get(keyspace_id, [])
        place = bisect_left(order, key, key=_first_key)
        if not 0 < place < len(order) or order[place][0] != key:
            return None
        return self[order[place - 1][1]], self[order[place][1]]

    def _index(self, old: Partition, new: Partition) -> None:
        id_ = old.id or new.id
        if old.leader != new.leader:
            _move(self.led, old.leader, new.leader, id_)
        if old.keyspace_id != new.keyspace_id:
            _move(self.of_keyspace, old.keyspace_id, new.keyspace_id, id_)
        if bool(new.id) and new.state in _WITHOUT_LEADER:
            self.leaderless[id_] = None
        elif old.state in _WITHOUT_LEADER:
            self.leaderless.pop(id_, None)
        if new.successor or old.successor:
            _mark(self.yielding, id_, bool(new.successor))
        if new.splitting or old.splitting:
            _mark(self.splitting, id_, new.splitting)
        if new.merge_from or old.merge_from:
            _mark(self.merging, id_, bool(new.merge_from))
        if (old.id, old.start_key, old.end_key) != (new.id, new.start_key, new.end_key):
            self._reorder(old, new)

    def _reorder(self, old: Partition, new: Partition) -> None:
        """Update `_order`. A row without bounds has no place there: it has all keys, or its keyspace is by hash."""
        keyspace = old.keyspace_id or new.keyspace_id
        if old.start_key or old.end_key:
            order = self._order[keyspace]
            del order[bisect_left(order, (old.start_key, old.id))]
            if not order:
                del self._order[keyspace]
        if new.start_key or new.end_key:
            insort(self._order.setdefault(keyspace, []), (new.start_key, new.id))

    def index_copies(self, old: Partition | None, new: Partition | None) -> None:
        """Update `copies`. `old`, `new`: the partition's row before and after; None: there is none."""
        if (
            old is not None
            and new is not None
            and old.replicas == new.replicas
            and old.removing_replicas == new.removing_replicas
        ):
            return
        id_ = (old or new or _NO_PARTITION).id
        before, after = _members(old), _members(new)
        for node in before:
            if node not in after:
                del self.copies[node][id_]
        for node in after:
            self.copies.setdefault(node, {})[id_] = None


def _move(index: dict[K, Ids], old: K, new: K, id_: int) -> None:
    if old:
        del index[old][id_]
    if new:
        index.setdefault(new, {})[id_] = None


def _mark(ids: Ids, id_: int, is_one: bool) -> None:
    if is_one:
        ids[id_] = None
    else:
        ids.pop(id_, None)


def _first_key(entry: tuple[bytes, int]) -> bytes:
    return entry[0]


def _members(row: Partition | None) -> dict[str, None]:
    # Not a set: the order of a set of names differs from process to process.
    return {} if row is None else dict.fromkeys((*row.replicas, *row.removing_replicas))
