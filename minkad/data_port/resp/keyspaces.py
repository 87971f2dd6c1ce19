"""The keyspaces as connections of Redis clients see them: they find the node that leads a key's partition, in this
node's copy of the table.
"""

from abc import ABC, abstractmethod
from binascii import crc_hqx
from collections.abc import Callable, Collection, Iterator
from itertools import groupby
from typing import Final, NamedTuple

from minka.cluster.hashing import REDIS_SLOTS, crc16, digest_of, redis_slots
from minka.cluster.key_ranges import is_by_ranges
from minka.cluster.routing_table import RangeRoutes, Route
from minka.v1.cluster_pb2 import HashFunction, Keyspace, Partition
from minkad.core.state import OwnTable, State

_OWN: Final = b"_"  # prefix of the names of the cluster's own keyspaces
_BRACE: Final = ord("{")  # to look for a number in a key takes a fifth of the time of b"{"


class SlotRange(NamedTuple):
    """Neighbouring slots of Redis in partitions with the same replicas."""

    first: int
    last: int
    leader: str  # "": none
    followers: tuple[str, ...]  # in-sync nodes that lead no partition


class View(ABC):
    """One keyspace."""

    is_cluster = False
    """True if clients choose the right node themselves, as in Redis Cluster."""

    def __init__(self, keyspace: Keyspace, state: State) -> None:
        self.id: Final = keyspace.id
        self.name: Final = keyspace.name
        self.state = state
        self.answer_bytes = 64
        """About the number of bytes for one key in other nodes' answers."""

    def learn_size(self, size: int) -> None:
        """A key was answered with `size` bytes. The expected size grows at once, and shrinks slowly."""
        if size > self.answer_bytes:
            self.answer_bytes = size
        else:
            self.answer_bytes -= (self.answer_bytes - size) >> 5

    @abstractmethod
    def route(self, key: bytes) -> Route | None:
        """The route to a key; None while it isn't known."""

    @abstractmethod
    def routes(self) -> Iterator[Route]:
        """The routes to all partitions, in order."""

    def learn(self, rows: Collection[Partition]) -> None:  # noqa: B027 - other views have only the table
        """Take the rows in a refusal, which may be newer than the table here."""

    @abstractmethod
    def changed(self, partitions: Collection[int] | None) -> None:
        """The rows of these partitions, perhaps of other keyspaces, have changed; None: any rows may have."""


class HashView(View):
    """A keyspace by hash. Decodes a row when somebody needs the row."""

    def __init__(self, keyspace: Keyspace, state: State) -> None:
        super().__init__(keyspace, state)
        self.count: Final = keyspace.partition_count
        self._digest = digest_of(keyspace.hash, self.count)
        self._routes: list[Route | None] = [None] * self.count  # by slot; None: not decoded since the row changed
        self._ids: list[int] = list(state.partitions.of_keyspace[keyspace.id])  # by slot, as they were made
        self._slots = {id_: slot for slot, id_ in enumerate(self._ids)}

    def route(self, key: bytes) -> Route | None:
        """The route to the key's slot."""
        slot = self._digest(key) % self.count
        return self._routes[slot] or self._route_of(slot)

    def route_at(self, slot: int) -> Route | None:
        """The route to a partition by its slot; None if there is no such partition."""
        return (self._routes[slot] or self._route_of(slot)) if slot < self.count else None

    def routes(self) -> Iterator[Route]:
        """The routes to all slots, in order."""
        for slot, route in enumerate(self._routes):
            if (found := route or self._route_of(slot)) is not None:
                yield found

    def changed(self, partitions: Collection[int] | None) -> None:
        """Forget the old rows."""
        if partitions is None:
            self._routes = [None] * self.count
            return
        for id_ in partitions:
            if (slot := self._slots.get(id_)) is not None:
                self._routes[slot] = None

    def _route_of(self, slot: int) -> Route | None:
        row = self.state.partitions.get(self._ids[slot])
        route = None if row is None else Route.of(row)
        self._routes[slot] = route
        return route


class ClusterView(HashView):
    """A keyspace whose partitions have slots of Redis."""

    is_cluster = True

    def route(self, key: bytes) -> Route | None:
        """The route to the key's slot."""
        redis_slot = crc_hqx(key, 0) % REDIS_SLOTS if _BRACE not in key else crc16(key)
        slot = redis_slot * self.count // REDIS_SLOTS
        return self._routes[slot] or self._route_of(slot)

    def route_of_slot(self, redis_slot: int) -> Route | None:
        """The route to a slot of Redis."""
        slot = redis_slot * self.count // REDIS_SLOTS
        return self._routes[slot] or self._route_of(slot)

    def slot_ranges(self) -> list[SlotRange]:
        """All slots, with their nodes. For a client, a node is either a master or a replica, so a node that leads
        anything isn't named as a follower.
        """
        routes = list(self.routes())
        leaders = {route.leader for route in routes}
        shown = [(route.leader, tuple(node for node in route.readable if node not in leaders)) for route in routes]
        ranges = []
        for (leader, followers), some in groupby(enumerate(shown), key=lambda one: one[1]):
            slots = [slot for slot, _ in some]
            first, last = redis_slots(slots[0], self.count)[0], redis_slots(slots[-1], self.count)[1]
            ranges.append(SlotRange(first, last, leader, followers))
        return ranges


class RangeView(View):
    """A keyspace by ranges."""

    def __init__(self, keyspace: Keyspace, state: State) -> None:
        super().__init__(keyspace, state)
        self._keyspace = keyspace
        self._routes = RangeRoutes(keyspace)
        self.changed(None)

    def route(self, key: bytes) -> Route | None:
        """The route to the range that contains the key."""
        return self._routes.route(0, [key])

    def routes(self) -> Iterator[Route]:
        """The routes to all ranges, in order."""
        for id_ in self.state.partitions.in_order(self.id):
            if (row := self.state.partitions.get(id_)) is not None:
                yield Route.of(row)

    def changed(self, partitions: Collection[int] | None) -> None:
        """Take the rows."""
        if partitions is None:
            self._routes = RangeRoutes(self._keyspace)
        for row in self.state.partitions.decoded(partitions) if partitions is not None else self._rows():
            if row.keyspace_id == self.id:
                self._routes.update(row)

    def learn(self, rows: Collection[Partition]) -> None:
        """Take the rows that are newer."""
        for row in rows:
            if row.keyspace_id == self.id:
                self._routes.update(row)

    def _rows(self) -> Iterator[Partition]:
        return self.state.partitions.of(self.id)


class Keyspaces:
    """The views in use."""

    def __init__(self, table: OwnTable, on_nodes: Callable[[Collection[str]], None]) -> None:
        """`on_nodes` is called with the addresses of all data
        ports whenever the nodes may have changed.
        """
        self._table = table
        self._on_nodes = on_nodes
        self._views: dict[bytes, View] = {}  # by name
        self._seen: State | None = None  # the tables at the last refresh
        self._version = -1  # of `_seen`, at that time

    def refresh(self) -> None:
        """Take the changes since the last call."""
        state = self._table.state
        if state is self._seen and state.version == self._version:
            return
        changed = state.changes.since(self._version) if state is self._seen else None
        self._seen, self._version = state, state.version
        for view in self._views.values():
            view.state = state
            view.changed(changed.partitions if changed is not None else None)
        if changed is None or changed.nodes:
            self._on_nodes({node.data_address for node in state.nodes.values()})

    def view(self, name: bytes) -> View | None:
        """The keyspace of this name; None if the keyspace doesn't exist, or isn't complete yet."""
        if name.startswith(_OWN):
            return None
        self.refresh()
        if (known := self._views.get(name)) is not None:
            return known
        state = self._table.state
        keyspace = state.keyspace_named(name.decode("utf-8", "replace"))
        if keyspace is None or keyspace.id in state.incomplete:
            return None
        view = self._views[name] = _view_of(keyspace, state)
        return view

    @property
    def state(self) -> State:
        """The present tables."""
        return self._table.state

    def names(self) -> list[str]:
        """The names of all keyspaces that people have made."""
        return sorted(
            one.name for one in self._table.state.keyspaces.values() if not one.name.encode().startswith(_OWN)
        )

    def data_address(self, node_id: str) -> str:
        """host:port of a node's data port; "" if unknown."""
        node = self._table.state.nodes.get(node_id)
        return node.data_address if node is not None else ""


def _view_of(keyspace: Keyspace, state: State) -> View:
    if is_by_ranges(keyspace):
        return RangeView(keyspace, state)
    if keyspace.hash == HashFunction.HASH_FUNCTION_CRC16:
        return ClusterView(keyspace, state)
    return HashView(keyspace, state)
