"""The client's copy of the partition table: key → slot or range → partition → node. It does no I/O: its owner fetches
the changes and passes them in.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from sys import intern
from typing import Final, Generic, TypeVar

from minka.cluster.hashing import HASH_FUNCTIONS, digest_of
from minka.cluster.key_ranges import ALL_KEYS, KeyRange, is_by_ranges
from minka.errors import Code, MinkaError
from minka.v1 import admin_pb2, cluster_pb2
from minka.v1.cluster_pb2 import NodeState, Partitioning

_MAX_NAMES_SHOWN: Final = 10
_NOWHERE: Final = ("", "")
_ALIVE: Final = frozenset({NodeState.NODE_STATE_LIVE, NodeState.NODE_STATE_DRAINING})


@lru_cache(maxsize=10_000)
def _shared(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """One shared tuple for equal `nodes`, to save memory: many partitions have the same nodes, and each row that
    arrives has strings of its own.
    """
    return tuple(map(intern, nodes))


@dataclass(frozen=True, slots=True)
class Route:
    """The part of a partition's row that a request for the partition needs."""

    partition_id: int
    partition_epoch: int
    generation: int
    leader: str  # node id; "" if the partition has no leader
    readable: tuple[str, ...] = ()  # nodes whose replica is in sync
    range: KeyRange = ALL_KEYS

    @classmethod
    def of(cls, row: cluster_pb2.Partition) -> "Route":
        """The route that a partition's row gives."""
        range_ = KeyRange(row.start_key, row.end_key) if row.start_key or row.end_key else ALL_KEYS
        isr = _shared(tuple(row.isr[:]))
        leader = isr[isr.index(row.leader)] if row.leader in isr else row.leader
        return cls(row.id, row.partition_epoch, row.generation, leader, isr, range_)


Value = TypeVar("Value")


@dataclass(slots=True)
class PairBucket(Generic[Value]):
    """The pairs of a batch that have the same place; `values[i]` belongs to `keys[i]`."""

    place: int
    keys: list[bytes]
    values: list[Value]


class KeyspaceRoutes(ABC):
    """The place of each key of a keyspace, and the route to each place. A place is the number of a slot, or of a range
    as it is now.
    """

    def __init__(self, name: str) -> None:
        self.name: Final = name

    @abstractmethod
    def place(self, key: bytes) -> int:
        """The place of a key."""

    @abstractmethod
    def key_buckets(self, keys: Iterable[bytes]) -> list[tuple[int, list[bytes]]]:
        """The keys grouped by place; each group keeps the order."""

    @abstractmethod
    def pair_buckets(self, pairs: Mapping[bytes, Value]) -> list[PairBucket[Value]]:
        """The pairs grouped by place; each group keeps the order."""

    @abstractmethod
    def belong_together(self, keys: Sequence[bytes]) -> bool:
        """True if these keys, which had one common place before, still have one."""

    @abstractmethod
    def route(self, place: int, keys: Sequence[bytes]) -> Route | None:
        """The route of keys that belong together and had this place before; None while the route isn't known."""

    @abstractmethod
    def update(self, row: cluster_pb2.Partition) -> bool:
        """Take a row of the keyspace if it is newer; return True if it was."""


class HashRoutes(KeyspaceRoutes):
    """A keyspace by hash. A place is a slot, and a key's slot never changes."""

    def __init__(self, keyspace: cluster_pb2.Keyspace) -> None:
        super().__init__(keyspace.name)
        self.count: Final = keyspace.partition_count
        self.hash: Final = keyspace.hash
        self._hash: Final[Callable[[bytes], int]] = digest_of(keyspace.hash, keyspace.partition_count)
        self.routes: list[Route | None] = []  # by slot; empty until the first row comes, to save memory

    def place(self, key: bytes) -> int:
        """The slot of a key: its hash modulo the number of partitions."""
        return self._hash(key) % self.count

    def key_buckets(self, keys: Iterable[bytes]) -> list[tuple[int, list[bytes]]]:
        """The keys grouped by slot; each group keeps the order."""
        digest, count = self._hash, self.count
        buckets: defaultdict[int, list[bytes]] = defaultdict(list)
        for key in keys:
            buckets[digest(key) % count].append(key)
        return list(buckets.items())

    def pair_buckets(self, pairs: Mapping[bytes, Value]) -> list[PairBucket[Value]]:
        """The pairs grouped by slot; each group keeps the order."""
        digest, count = self._hash, self.count
        keys: defaultdict[int, list[bytes]] = defaultdict(list)
        values: defaultdict[int, list[Value]] = defaultdict(list)
        for key, value in pairs.items():
            slot = digest(key) % count
            keys[slot].append(key)
            values[slot].append(value)
        return [PairBucket(slot, keys[slot], values[slot]) for slot in keys]

    def belong_together(self, keys: Sequence[bytes]) -> bool:
        """Always true: a key's slot never changes."""
        return True

    def route(self, place: int, keys: Sequence[bytes]) -> Route | None:
        """The route of the slot."""
        return self.routes[place] if self.routes else None

    def update(self, row: cluster_pb2.Partition) -> bool:
        """Take a row if its partition_epoch is higher than the known row's; return True if it was. Raises
        INTERNAL for a slot that the keyspace doesn't have.
        """
        if row.slot >= self.count:
            raise MinkaError(Code.INTERNAL, f"partition {row.id} has slot {row.slot} of {self.count} in {self.name!r}")
        self.routes = self.routes or [None] * self.count
        known = self.routes[row.slot]
        if known is not None and row.partition_epoch <= known.partition_epoch:
            return False
        self.routes[row.slot] = Route.of(row)
        return True


class RangeRoutes(KeyspaceRoutes):
    """A keyspace by ranges. A key's place is the number of known ranges that start at the key or before it. The place
    is negative if the last of these ranges ends before the key, or if there is none.

    Rows come one by one, so the ranges may overlap or have gaps. A key belongs to the last range that starts at the key
    or before it, since a split leaves the parent's start and gives the child a new one. When the row of a merged range
    comes, the ranges that were merged into it are dropped.
    """

    def __init__(self, keyspace: cluster_pb2.Keyspace) -> None:
        super().__init__(keyspace.name)
        self._starts: list[bytes] = []  # of the known ranges, ascending
        self._routes: dict[bytes, Route] = {}  # by the range's start

    def place(self, key: bytes) -> int:
        """The place of a key, as far as the ranges are known."""
        place = bisect_right(self._starts, key)
        if not place:
            return -1
        end = self._routes[self._starts[place - 1]].range.end
        return place if not end or key < end else -place - 1

    def key_buckets(self, keys: Iterable[bytes]) -> list[tuple[int, list[bytes]]]:
        """The keys grouped by range; each group keeps the order."""
        buckets: defaultdict[int, list[bytes]] = defaultdict(list)
        for key in keys:
            buckets[self.place(key)].append(key)
        return list(buckets.items())

    def pair_buckets(self, pairs: Mapping[bytes, Value]) -> list[PairBucket[Value]]:
        """The pairs grouped by range; each group keeps the order."""
        buckets = self.key_buckets(pairs)
        return [PairBucket(place, keys, [pairs[key] for key in keys]) for place, keys in buckets]

    def belong_together(self, keys: Sequence[bytes]) -> bool:
        """True if the keys lie in one range."""
        return len(keys) == 1 or self.place(min(keys)) == self.place(max(keys))

    def route(self, place: int, keys: Sequence[bytes]) -> Route | None:
        """The route of the range in which the keys lie now."""
        now = self.place(keys[0])
        return self._routes[self._starts[now - 1]] if now > 0 else None

    def route_below(self, end: bytes) -> Route | None:
        """The route of the range with the greatest keys before `end` (b"": of all keys); None if that range isn't
        known.
        """
        place = bisect_left(self._starts, end) if end else len(self._starts)
        route = self._routes[self._starts[place - 1]] if place else None
        known = route is not None and (not route.range.end or (bool(end) and end <= route.range.end))
        return route if known else None

    def overlapping(self, wanted: KeyRange) -> list[KeyRange]:
        """The parts into which the starts of known partitions divide `wanted`; they are in order and without gaps."""
        starts = [start for start in self._starts if wanted.start < start and (not wanted.end or start < wanted.end)]
        return [KeyRange(*bounds) for bounds in pairwise((wanted.start, *starts, wanted.end))]

    def update(self, row: cluster_pb2.Partition) -> bool:
        """Take a row if it is newer; return True if it was. Of two rows of one partition, the one with the higher
        partition_epoch stays. Of two partitions that have a key in common, the one with the greater generation stays:
        after a split or a merge, the partition of a key has a greater generation than the key's partition had before.
        """
        route = Route.of(row)
        known = self._routes.get(row.start_key)
        if known is not None and known.partition_id == row.id:
            if row.partition_epoch <= known.partition_epoch:
                return False
        elif self._is_gone(route):
            return False
        if known is None:
            insort(self._starts, row.start_key)
        self._routes[row.start_key] = route
        self._drop_merged(route)
        return True

    def _is_gone(self, route: Route) -> bool:
        """True if the first key of this route belongs to a known partition whose generation isn't lower."""
        place = bisect_right(self._starts, route.range.start)
        owner = self._routes[self._starts[place - 1]] if place else None
        return owner is not None and owner.range.contains(route.range.start) and owner.generation >= route.generation

    def _drop_merged(self, route: Route) -> None:
        """Drop the ranges that begin inside this range and aren't newer: they were merged into it. The last row of a
        merged range has the generation of the range into which it was merged.
        """
        first = bisect_right(self._starts, route.range.start)
        last = bisect_left(self._starts, route.range.end) if route.range.end else len(self._starts)
        merged = [start for start in self._starts[first:last] if self._routes[start].generation <= route.generation]
        for start in merged:
            del self._routes[start]
        if merged:
            self._starts = [start for start in self._starts if start in self._routes]


def routes_of(keyspace: cluster_pb2.Keyspace) -> KeyspaceRoutes:
    """Empty routes for a keyspace. Raises INTERNAL if its kind isn't known here."""
    if is_by_ranges(keyspace):
        return RangeRoutes(keyspace)
    by_hash = keyspace.partitioning in (Partitioning.PARTITIONING_UNSPECIFIED, Partitioning.PARTITIONING_HASH)
    if not by_hash or keyspace.hash not in HASH_FUNCTIONS or not keyspace.partition_count:
        raise MinkaError(
            Code.INTERNAL, f"keyspace {keyspace.name!r} is of a kind that this version of the client doesn't know"
        )
    return HashRoutes(keyspace)


class RoutingTable:
    """Every keyspace's routes and every node's address, as far as this client has heard.

    Tables and rows arrive from different nodes in any order; for each partition the row with the highest
    partition_epoch is kept.
    """

    def __init__(self) -> None:
        self.version = 0
        self.cluster_id = ""
        self._keyspaces: dict[str, KeyspaceRoutes] = {}
        self._by_id: dict[int, KeyspaceRoutes] = {}
        self._addresses: dict[str, tuple[str, str]] = {}  # by node id: the addresses of its gRPC and data ports
        self._alive: set[str] = set()  # ids of the nodes that the controller hears

    def add(self, table: cluster_pb2.PartitionTable) -> bool:
        """Take the rows of a whole table that are new here; return True if any route changed. If `table` is older than
        this one, this table's version becomes that of `table`, so that the client asks for all changes since then.
        """
        if not table.version:
            return False  # it is from a node that has just started
        version = self.version
        changed = self.replace(table)
        self.version = min(version, table.version) if version else self.version
        return changed

    def take(self, answer: admin_pb2.GetTableResponse) -> bool:
        """Take an answer: a whole table, the changes since this table, or nothing. Return True if any route changed."""
        if answer.HasField("table"):
            return self.replace(answer.table)
        return answer.HasField("changes") and self.change(answer.changes)

    def change(self, changes: cluster_pb2.TableChanges) -> bool:
        """Take the changes since a version that this table has had; return True if any route changed."""
        if changes.version >= self.version:
            self.version = changes.version
            self._learn_nodes(changes.nodes)
            for node_id in changes.removed_nodes:
                self._addresses.pop(node_id, None)
                self._alive.discard(node_id)
        return self._add(changes.keyspaces, changes.partitions)

    def replace(self, table: cluster_pb2.PartitionTable) -> bool:
        """Take a whole table; return True if any route changed.

        Raises CLUSTER_MISMATCH if the first table was another cluster's.
        """
        if self.cluster_id and table.cluster.id and table.cluster.id != self.cluster_id:
            raise MinkaError(
                Code.CLUSTER_MISMATCH,
                f"the endpoints belong to two clusters, {self.cluster_id} and {table.cluster.id}",
            )
        self.cluster_id = self.cluster_id or table.cluster.id  # a node that has just started doesn't know the id yet
        if table.version >= self.version:
            self.version = table.version
            self._addresses.clear()
            self._alive.clear()
            self._learn_nodes(table.nodes)
        return self._add(table.keyspaces, table.partitions)

    def _learn_nodes(self, nodes: Iterable[cluster_pb2.Node]) -> None:
        for node in nodes:
            self._addresses[node.id] = (node.address, node.data_address)
            if node.state in _ALIVE:
                self._alive.add(node.id)
            else:
                self._alive.discard(node.id)

    def _add(self, keyspaces: Iterable[cluster_pb2.Keyspace], rows: Iterable[cluster_pb2.Partition]) -> bool:
        for keyspace in keyspaces:
            if keyspace.id not in self._by_id:
                self._by_id[keyspace.id] = self._keyspaces[keyspace.name] = routes_of(keyspace)
        return self.update(rows)

    def update(self, rows: Iterable[cluster_pb2.Partition]) -> bool:
        """Take single rows, such as the rows in a refusal; return True if any route changed."""
        changed = False
        for row in rows:
            keyspace = self._by_id.get(row.keyspace_id)
            if keyspace is None:
                continue  # the keyspace is newer than this table; the next table brings it and its rows
            changed |= keyspace.update(row)
        return changed

    def keyspace(self, name: str) -> KeyspaceRoutes:
        """The routes of a keyspace. Raises UNKNOWN_KEYSPACE with the names of the keyspaces that exist."""
        if (routes := self._keyspaces.get(name)) is not None:
            return routes
        names = sorted(self._keyspaces)
        shown = ", ".join(islice(names, _MAX_NAMES_SHOWN)) + (", …" if len(names) > _MAX_NAMES_SHOWN else "")
        raise MinkaError(
            Code.UNKNOWN_KEYSPACE,
            f"there is no keyspace {name!r}; " + (f"there are: {shown}" if names else "the cluster has none yet"),
            keyspace=name,
        )

    def knows(self, name: str) -> bool:
        """True if this table has a keyspace of this name."""
        return name in self._keyspaces

    def addresses_of(self, node_id: str) -> tuple[str, str]:
        """The addresses of a node's gRPC server and of its data port, "" when they aren't known."""
        return self._addresses.get(node_id, _NOWHERE)

    def is_alive(self, node_id: str) -> bool:
        """True if the active controller hears the node, according to this table."""
        return node_id in self._alive

    def addresses(self) -> list[str]:
        """The gRPC addresses of all nodes."""
        return [address for address, _ in self._addresses.values() if address]

    def all_addresses(self) -> set[tuple[str, str]]:
        """The addresses of all nodes, as `addresses_of` gives them."""
        return set(self._addresses.values())
