"""Sums over the partitions of a table, kept up to date by the rows that change."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from minka.cluster.in_sync import eligible_replicas, is_sole, is_under_min_insync, missing_in_sync
from minka.v1.admin_pb2 import KeyspaceCounts, NodeCounts, NodeShare, NotInSync, TableSummary, ZoneCounts
from minka.v1.cluster_pb2 import Keyspace, Node, NodeState, Partition, PartitionState
from minkad.core.state import ROWS_A_PIECE, slices

MAX_NOT_IN_SYNC: Final = 1000  # sets of nodes that lack in some isr, in a summary; the rest is added up
_ONLINE: Final = PartitionState.PARTITION_STATE_ONLINE
_ASSIGNED: Final = PartitionState.PARTITION_STATE_ASSIGNED
_SERVED: Final = (_ASSIGNED, _ONLINE)
LEAST_UNEVEN: Final = 4  # partitions; if nodes differ by fewer, their numbers for a keyspace aren't told
_NO_SIZE: Final = (0, 0)


class _Kind(NamedTuple):
    """The counted content of a row. Many rows have the same."""

    keyspace_id: int
    state: PartitionState.ValueType
    leader: str
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    eligible: tuple[str, ...]
    adding_replicas: tuple[str, ...]
    removing_replicas: tuple[str, ...]
    target_replicas: tuple[str, ...]
    leader_epoch: int
    unclean_elections: int


def _kind_of(row: Partition) -> _Kind:
    # A slice of a repeated field takes a third of the time of an iteration, and most of these have nothing.
    adding, removing, target = row.adding_replicas, row.removing_replicas, row.target_replicas
    return _Kind._make(
        (
            row.keyspace_id,
            row.state,
            row.leader,
            tuple(row.replicas[:]),
            tuple(row.isr[:]),
            tuple(eligible_replicas(row)),
            tuple(adding) if adding else (),
            tuple(removing) if removing else (),
            tuple(target) if target else (),
            row.leader_epoch,
            row.unclean_elections,
        )
    )


class TableCounts:
    """Counts of partitions, by node, by keyspace, and of all.

    To count a row costs as much as to read it. What many rows have in common is added up once for all, by `settle`.
    """

    def __init__(self) -> None:
        self.version = -1  # of the table that was counted
        self.states: Counter[int] = Counter()
        self.missing_in_sync = 0
        self.under_replicated = 0
        self.under_min_insync = 0
        self.reassigned = 0
        self.elections = 0  # that were seen: it never falls
        self.unclean_elections = 0
        self.by_node: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by node, by the field of NodeCounts
        self.unconfirmed: dict[tuple[int, int], str] = {}  # by partition and leader_epoch: the leader
        self._kinds: dict[int, _Kind] = {}  # by partition
        self._shared: dict[_Kind, tuple[_Kind, int]] = {}  # the number of partitions of a kind
        self._changes: Counter[_Kind] = Counter()  # since `settle`
        self._sizes: dict[int, tuple[int, int]] = {}  # by partition: keys and bytes, if there are any
        self._states: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by keyspace, by state
        self._on: defaultdict[int, Counter[str]] = defaultdict(Counter)  # by keyspace: replicas by node
        self._leads: defaultdict[int, Counter[str]] = defaultdict(Counter)  # and what nodes lead of it
        self._preferred: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._if_elected: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._of_keyspace: defaultdict[int, tuple[int, int]] = defaultdict(lambda: _NO_SIZE)  # keys and bytes
        self._bytes: Counter[str] = Counter()  # by node
        self._not_in_sync: Counter[frozenset[str]] = Counter()  # under-replicated partitions, by the nodes that lack
        self._min_insync: dict[int, int] = {}  # by keyspace
        self._zones: dict[str, str] = {}  # by node
        self._zones_counted = True  # by these zones, all of it
        self._offline_without: Counter[str] = Counter()  # by zone: partitions that would be OFFLINE without it
        self._refusing_without: Counter[str] = Counter()  # and those that would be under min-insync

    def __len__(self) -> int:
        return len(self._kinds)

    def leader(self, partition_id: int) -> str | None:
        """The node that leads the partition; None if it isn't counted."""
        kind = self._kinds.get(partition_id)
        return None if kind is None else kind.leader

    def gone(self, present: Mapping[int, Partition]) -> list[int]:
        """The partitions that are counted and not present."""
        return list(self._kinds.keys() - present.keys())

    def put(self, partition_id: int, row: Partition | None) -> None:
        """Count this row for the partition, instead of the previous one; None: the partition is gone."""
        old = self._kinds.get(partition_id)
        new = None if row is None else _kind_of(row)
        if old == new:
            return
        size = self._sizes.get(partition_id)
        if size is not None:
            self.put_size(partition_id, *_NO_SIZE)
        if old is not None:
            self._release(old)
            self.unconfirmed.pop((partition_id, old.leader_epoch), None)
        if new is None:
            self._kinds.pop(partition_id, None)
            return
        if new.state == _ASSIGNED:
            self.unconfirmed[partition_id, new.leader_epoch] = new.leader
        self._kinds[partition_id] = self._share(new)
        if size is not None:
            self.put_size(partition_id, *size)
        # Each election adds one to a leader_epoch, and so does each merge.
        self.elections += new.leader_epoch - (old.leader_epoch if old is not None else 0)
        self.unclean_elections += new.unclean_elections - (old.unclean_elections if old is not None else 0)

    def _share(self, kind: _Kind) -> _Kind:
        shared, count = self._shared.get(kind, (kind, 0))
        self._shared[kind] = shared, count + 1
        self._changes[shared] += 1
        return shared

    def _release(self, kind: _Kind) -> None:
        shared, count = self._shared[kind]
        if count == 1:
            del self._shared[kind]
        else:
            self._shared[kind] = shared, count - 1
        self._changes[kind] -= 1

    def put_size(self, partition_id: int, keys: int, bytes_: int) -> None:
        """Count the size that the leader reports, if the partition is counted."""
        kind, old = self._kinds.get(partition_id), self._sizes.get(partition_id, _NO_SIZE)
        if kind is None or old == (keys, bytes_):
            return
        more_keys, more_bytes = keys - old[0], bytes_ - old[1]
        if keys or bytes_:
            self._sizes[partition_id] = keys, bytes_
        else:
            del self._sizes[partition_id]
        all_keys, all_bytes = self._of_keyspace[kind.keyspace_id]
        self._of_keyspace[kind.keyspace_id] = all_keys + more_keys, all_bytes + more_bytes
        for node in kind.replicas:
            self._bytes[node] += more_bytes

    def place(self, zones: Mapping[str, str]) -> Iterator[None]:
        """Count by these zones of the nodes from now on. If a node has changed its zone, all is counted again, a piece
        at each step; the table must not be counted in between.
        """
        if self._zones_counted and all(self._zones.get(node, zone) == zone for node, zone in zones.items()):
            self._zones |= zones
            return
        self._zones, self._zones_counted = dict(zones), False
        self._offline_without.clear()
        self._refusing_without.clear()
        for some in slices(self._shared.values(), ROWS_A_PIECE):
            for kind, count in some:
                self._add_to_zones(kind, count)
            yield
        self._zones_counted = True

    def settle(self, keyspaces: Mapping[int, Keyspace]) -> None:
        """Add up the changes since the last time."""
        changes, self._changes = self._changes, Counter()
        for kind, count in changes.items():
            if count:
                self._add(kind, count, keyspaces[kind.keyspace_id])

    def _add(self, kind: _Kind, count: int, keyspace: Keyspace) -> None:
        missing, refuses = missing_in_sync(kind), is_under_min_insync(kind, keyspace)
        self.states[kind.state] += count
        self._states[kind.keyspace_id][kind.state] += count
        self.missing_in_sync += missing * count
        self.under_replicated += (missing > 0) * count
        self.under_min_insync += refuses * count
        self.reassigned += bool(kind.target_replicas) * count
        if missing > 0:
            lack = frozenset(kind.replicas) - {*kind.isr, *kind.adding_replicas}
            self._not_in_sync[lack] += count
            if not self._not_in_sync[lack]:
                del self._not_in_sync[lack]
        self._add_leaders(kind, count)
        self._min_insync[kind.keyspace_id] = keyspace.min_insync
        self._add_to_zones(kind, count)
        on, in_sync, whole = self._on[kind.keyspace_id], frozenset(kind.isr), frozenset(kind.isr + kind.eligible)
        for node in kind.replicas:
            counts = self.by_node[node]
            on[node] += count
            counts["replicas"] += count
            counts["staying"] += (node not in kind.removing_replicas) * count
            counts["sole"] += is_sole(node, whole) * count
            counts["keeps_from_writes"] += (refuses and node not in in_sync) * count
        if kind.state == PartitionState.PARTITION_STATE_OFFLINE:
            for node in whole:
                self.by_node[node]["offline_in_sync"] += count

    def _add_to_zones(self, kind: _Kind, count: int) -> None:
        least = self._min_insync[kind.keyspace_id]
        if kind.state not in _SERVED or len(kind.isr) < least:
            return
        in_zones = [self._zones.get(node, "") for node in kind.isr]
        for zone in set(in_zones):
            left = len(in_zones) - in_zones.count(zone)
            if not left:
                self._offline_without[zone] += count
            elif left < least:
                self._refusing_without[zone] += count

    def _add_leaders(self, kind: _Kind, count: int) -> None:
        preferred = kind.replicas[0] if kind.replicas else ""
        self.by_node[kind.leader]["leads"] += count
        self.by_node[kind.leader]["leads_online"] += (kind.state == _ONLINE) * count
        self.by_node[preferred]["preferred"] += count
        elected = preferred if preferred in kind.isr else kind.leader
        self.by_node[elected]["leads_if_elected"] += count
        self._leads[kind.keyspace_id][kind.leader] += count
        self._preferred[kind.keyspace_id][preferred] += count
        self._if_elected[kind.keyspace_id][elected] += count

    def summary(self, nodes: Iterable[Node], keyspaces: Iterable[Keyspace]) -> TableSummary:
        """All counts for these nodes and keyspaces, in their order."""
        nodes, keyspaces = list(nodes), list(keyspaces)
        live = sum(node.state == NodeState.NODE_STATE_LIVE for node in nodes)
        movable, needed = Counter[str](), Counter[str]()
        for keyspace in keyspaces:
            for node_id, count in self._on[keyspace.id].items():
                if count:
                    needed[node_id] = max(needed[node_id], keyspace.replicas)
                    movable[node_id] += count if keyspace.replicas < live else 0
        most = self._not_in_sync.most_common()
        others = most[MAX_NOT_IN_SYNC:]
        return TableSummary(
            partitions=len(self._kinds),
            reassigned=self.reassigned,
            under_replicated=self.under_replicated,
            under_min_insync=self.under_min_insync,
            nodes=[self._of_node(node.id, movable[node.id], needed[node.id]) for node in nodes],
            keyspaces=[self._counts_of(keyspace.id, nodes) for keyspace in keyspaces],
            not_in_sync=[NotInSync(nodes=sorted(lack), partitions=n) for lack, n in most[:MAX_NOT_IN_SYNC]],
            others_not_in_sync=NotInSync(
                nodes=sorted({node for lack, _ in others for node in lack}), partitions=sum(n for _, n in others)
            ),
            zones=[
                ZoneCounts(
                    zone=zone,
                    would_be_offline=self._offline_without[zone],
                    would_refuse_writes=self._refusing_without[zone],
                )
                for zone in sorted({node.zone for node in nodes})
            ],
        )

    def _of_node(self, node: str, movable: int, needed: int) -> NodeCounts:
        counts: Mapping[str, int] = self.by_node[node]
        return NodeCounts(node_id=node, movable=movable, needed_replicas=needed, bytes=self._bytes[node], **counts)

    def _counts_of(self, keyspace: int, nodes: Sequence[Node]) -> KeyspaceCounts:
        states, (keys, bytes_) = self._states[keyspace], self._of_keyspace[keyspace]
        return KeyspaceCounts(
            keyspace_id=keyspace,
            partitions=sum(states.values()),
            online=states[_ONLINE],
            assigned=states[_ASSIGNED],
            offline=states[PartitionState.PARTITION_STATE_OFFLINE],
            keys=keys,
            bytes=bytes_,
            shares=self._shares(keyspace, nodes),
        )

    def _shares(self, keyspace: int, nodes: Sequence[Node]) -> Iterator[NodeShare]:
        all_ = self._on[keyspace], self._leads[keyspace], self._preferred[keyspace], self._if_elected[keyspace]
        if any(_may_be_uneven(counts, len(nodes)) for counts in all_):
            for node in nodes:
                replicas, leads, preferred, elected = (counts[node.id] for counts in all_)
                yield NodeShare(replicas=replicas, leads=leads, preferred=preferred, leads_if_elected=elected)


def _may_be_uneven(counts: Counter[str], nodes: int) -> bool:
    """True if a node has at least LEAST_UNEVEN more than another one."""
    found = [count for node, count in counts.items() if node and count]
    least = min(found) if len(found) >= nodes else 0
    return max(found, default=0) - least >= LEAST_UNEVEN
