"""Moving the fewest replicas until every node has its share (Fixed Partitions: "Moving partitions to newly added
members"). Replicas of a partition never share a node, and don't come to share a zone."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Keyspace, Node, Partition
from minka.v1.coordinator_pb2 import DiskSpace
from minkad.core.placement.moving import destinations
from minkad.core.placement.quotas import even_quotas, filled_quotas
from minkad.core.state import State, holders, partition_name

_TRIES: Final = 500  # in a row without success, before what can't be evened out stays uneven
_FEW: Final = 1000  # partitions
NO_DISKS: Final[Mapping[str, DiskSpace]] = {}


@dataclass(frozen=True, slots=True)
class Step:
    """One replica's move."""

    partition_id: int
    source: str
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wishes:
    """The nodes on which replicas may be, and in what proportion. `gently`: only nodes that are no targets give up
    anything.
    """

    targets: Sequence[str]
    weights: Mapping[str, float] = field(default_factory=dict)
    gently: bool = False


class Layout:
    """What each node has once operations that have not ended, and the steps so far, are done. `disks`: by node, as far
    as they are known. `moves_again`: what those operations move need not be left alone.
    """

    def __init__(
        self,
        state: State,
        sizes: Mapping[int, int],
        disks: Mapping[str, DiskSpace] = NO_DISKS,
        *,
        moves_again: bool = False,
    ) -> None:
        self.nodes: Mapping[str, Node] = state.nodes
        self.sizes = sizes
        going = destinations(state)
        self.moving = {} if moves_again else {id_: to.operation_id for id_, to in going.items()}
        self.before = {p.id: going[p.id].replicas if p.id in going else holders(p) for p in state.partitions.values()}
        self.replicas = {id_: list(nodes) for id_, nodes in self.before.items()}
        self.totals = Counter(node for nodes in self.replicas.values() for node in nodes)
        self.disks = disks
        self.bytes = Counter[str]()
        for partition_id, nodes in self.replicas.items():
            self.bytes.update(dict.fromkeys(nodes, sizes.get(partition_id, 0)))
        self._hosts = {partition_id: tuple(nodes) for partition_id, nodes in self.replicas.items()}
        self.taken = Counter[str]()  # bytes that come; what leaves is deleted later, so it makes no room yet
        for partition_id, to in going.items():
            come = set(to.replicas).difference(holders(state.partitions[partition_id]))
            self.taken.update(dict.fromkeys(come, sizes.get(partition_id, 0)))

    def move(self, partition_id: int, source: str, target: str) -> None:
        """Move a replica: the target takes the source's place in the order."""
        replicas, size = self.replicas[partition_id], self.sizes.get(partition_id, 0)
        replicas[replicas.index(source)] = target
        self.totals.update({source: -1, target: 1})
        self.bytes.update({source: -size, target: size})
        if target not in self._hosts[partition_id]:
            self.taken[target] += size
        if source not in self._hosts[partition_id]:
            self.taken[source] -= size  # it was to come, and does not

    def fits(self, partition: Partition, source: str, target: str, *, any_zone: bool = False) -> bool:
        """Whether the replica may go from the source to the target."""
        replicas, node = self.replicas[partition.id], self.nodes[target]
        if target in replicas or target in partition.removing_replicas:
            return False
        if node.capacity_bytes and self.bytes[target] + self.sizes.get(partition.id, 0) > node.capacity_bytes:
            return False
        if not self.has_room(target, self.sizes.get(partition.id, 0)):
            return False
        return any_zone or self._zones(replicas) <= self._zones([target if n == source else n for n in replicas])

    def has_room(self, node: str, size: int) -> bool:
        """Whether the node's disk has room for so many bytes more, and is not low afterwards."""
        disk = self.disks.get(node)
        if disk is None or not disk.total_bytes:
            return True
        return not disk.is_low and disk.free_bytes - self.taken[node] - size >= disk.low_mark_bytes

    def _zones(self, nodes: Iterable[str]) -> int:
        return len({self.nodes[n].zone for n in nodes if n in self.nodes})


class Rebalance:
    """One keyspace's steps. What an operation moves already stays where that puts it."""

    def __init__(self, state: State, keyspace: Keyspace, layout: Layout, wishes: Wishes) -> None:
        self._state = state
        self._keyspace = keyspace
        self._layout = layout
        self._wishes = wishes
        rows = [p for p in state.partitions.values() if p.keyspace_id == keyspace.id]
        self._partitions = [p for p in rows if p.id not in layout.moving]
        self._before = Counter(n for p in rows for n in layout.replicas[p.id])
        self._now = Counter(self._before)
        quotas = filled_quotas if wishes.gently else even_quotas
        shares = quotas(self._before, wishes.targets, wishes.weights, len(rows), layout.totals)
        self.quotas = dict.fromkeys(self._before, 0) | shares
        self.steps: list[Step] = []
        self.notes: list[str] = []

    @property
    def minimum(self) -> int:
        """No plan with fewer moves leaves the nodes with as many replicas each as the steps do: so many have to leave.

        The shares are no measure: zones, capacities and other replicas may keep nodes from theirs.
        """
        return sum(max(0, before - self._now[node]) for node, before in self._before.items())

    def run(self) -> None:
        """Make the steps. If a node that is to have nothing can't be emptied, raises NOT_ENOUGH_NODES, or
        OPERATION_RUNNING if that is because of what an operation moves, or of a copy that is still being deleted.
        """
        surplus = [pair for node in sorted(self.quotas) for pair in self._surplus(node)]
        for partition, source in sorted(surplus, key=lambda s: (-self._size(s[0]), s[0].id)):
            self._move_if_possible(partition, source)
        for source in sorted(self.quotas):
            if not self._excess(source) or (self._wishes.gently and source in self._wishes.targets):
                continue
            for partition in self._ranked(source):
                if self._excess(source):
                    self._move_if_possible(partition, source)
            self._take_places(source)
            while self._excess(source) and self._move_by_way_of_another(source):
                pass
            if self._excess(source):
                self._leave_uneven(source)

    def _size(self, partition: Partition) -> int:
        return self._layout.sizes.get(partition.id, 0)

    def _excess(self, node: str) -> int:
        return max(0, self._now[node] - self.quotas[node])

    def _on(self, node: str) -> list[Partition]:
        return [p for p in self._partitions if node in self._layout.replicas[p.id]]

    def _ranked(self, node: str) -> list[Partition]:
        """The partitions on the node in the order in which they leave it: the nearest to the mean size first, and those
        that it leads mixed with those that it follows in proportion to their numbers.
        """
        mine = self._on(node)
        mean = sum(map(self._size, mine)) / max(1, len(mine))
        mine.sort(key=lambda p: (abs(self._size(p) - mean), -p.id))
        if self._keyspace.replicas <= 1:
            return mine
        led = [p for p in mine if self._layout.replicas[p.id][0] == node]
        followed = [p for p in mine if self._layout.replicas[p.id][0] != node]
        return list(_interleaved(led, followed))

    def _surplus(self, node: str) -> list[tuple[Partition, str]]:
        excess = self._excess(node)
        return [(p, node) for p in self._ranked(node)[:excess]] if excess else []

    def _room(self) -> list[str]:
        return [n for n in self._wishes.targets if self._now[n] < self.quotas[n]]

    def _best(self, partition: Partition, source: str, nodes: Collection[str], *, any_zone: bool = False) -> str | None:
        free = [n for n in nodes if n != source and self._layout.fits(partition, source, n, any_zone=any_zone)]
        layout = self._layout
        return min(free, key=lambda n: (layout.bytes[n], layout.totals[n], n), default=None)

    def _move_if_possible(self, partition: Partition, source: str) -> None:
        target = self._best(partition, source, self._room())
        if target is not None:
            self._move(partition, source, target)

    def _take_places(self, source: str) -> None:
        """A replica that was to go to a third node goes where there is room instead, and one of the source's takes its
        place.
        """
        mine, layout = self._ranked(source), self._layout
        last = {step.partition_id: i for i, step in enumerate(self.steps)}
        hopeless = {source}
        tries = _TRIES
        for i in last.values():
            room, step = self._room(), self.steps[i]
            if not room or not tries or not self._excess(source):
                return
            tries -= 1
            other = self._state.partitions[step.partition_id]
            if step.target in hopeless:
                continue
            target = self._best(other, step.target, [n for n in room if n != step.source])
            if target is None:
                continue
            own = next((p for p in mine if self._holds(source, p) and layout.fits(p, source, step.target)), None)
            if own is None:
                hopeless.add(step.target)
            elif own.id != other.id:
                layout.move(other.id, step.target, target)
                self._now.update({step.target: -1, target: 1})
                self.steps[i] = self._step(other, step.source, target)
                self._move(own, source, step.target)
                tries = _TRIES

    def _holds(self, node: str, partition: Partition) -> bool:
        return node in self._layout.replicas[partition.id]

    def _move_by_way_of_another(self, source: str) -> bool:
        """No replica of the source can go where there is room, so one goes to a third node, and one of that node's goes
        where there is room. Returns whether that was possible.

        It costs one move more. If there are many partitions, one that can go directly is found anyway.
        """
        room = self._room()
        if self._wishes.gently or not room or len(self._partitions) > _FEW:
            return False
        for middle in [n for n in self._wishes.targets if n != source and n not in room]:
            onward = next(((p, t) for p in self._on(middle) if (t := self._best(p, middle, room))), None)
            first = next((p for p in self._ranked(source) if self._layout.fits(p, source, middle)), None)
            if onward is not None and first is not None and onward[0].id != first.id:
                self._move(onward[0], middle, onward[1])
                self._move(first, source, middle)
                return True
        return False

    def _leave_uneven(self, source: str) -> None:
        """A node that is to have nothing is emptied at any price; others keep what no node can take."""
        if source in self._wishes.targets:
            self.notes.append(
                f"{source} keeps {self._now[source]} replicas of {self._keyspace.name} instead of "
                f"{self.quotas[source]}: no other node can take one of them (zones, capacity, disks, other replicas)"
            )
            return
        for partition in self._on(source):
            target = self._best(partition, source, self._wishes.targets)
            if target is None:
                target = self._best(partition, source, self._wishes.targets, any_zone=True)
                self.notes += [f"{self._name(partition)} has to share a zone"] if target else []
            if target is None:
                raise self._stuck(partition, source)
            self._move(partition, source, target)
        if self._excess(source):
            raise self._comes(source)

    def _comes(self, source: str) -> MinkaError:
        """The error if an operation that has not ended leaves a replica on the node that is to have nothing."""
        rows, layout = self._state.partitions, self._layout
        left, by = next(
            (rows[id_], by)
            for id_, by in layout.moving.items()
            if source in layout.replicas[id_] and rows[id_].keyspace_id == self._keyspace.id
        )
        text = f"operation {by} moves {self._name(left)} and leaves a replica on {source}"
        return MinkaError(Code.OPERATION_RUNNING, text, operation=str(by))

    def _stuck(self, partition: Partition, source: str) -> MinkaError:
        name, targets = self._name(partition), self._wishes.targets
        deleting = [n for n in targets if n in partition.removing_replicas]
        if deleting:
            text = f"{name}: {', '.join(deleting)} is still deleting an older copy; try again in a moment"
            return MinkaError(Code.OPERATION_RUNNING, text)
        return MinkaError(
            Code.NOT_ENOUGH_NODES,
            f"{name} can't leave {source}: none of the other {len(targets)} nodes can take it, for it has a replica "
            "there, or it is over capacity_bytes, or its disk has no room",
        )

    def _name(self, partition: Partition) -> str:
        return partition_name(self._state.keyspaces, partition)

    def _move(self, partition: Partition, source: str, target: str) -> None:
        self._layout.move(partition.id, source, target)
        self._now.update({source: -1, target: 1})
        self.steps.append(self._step(partition, source, target))

    def _step(self, partition: Partition, source: str, target: str) -> Step:
        what = "partitions" if self._keyspace.replicas <= 1 else "replicas"
        leaves = f"is to have {self.quotas[source]}"
        if source not in self._wishes.targets:
            leaves = "is not among the chosen nodes"
        reason = (
            f"{source} has {self._before[source]} {what} of {self._keyspace.name} and {leaves}; "
            f"{target} has {self._before[target]} and is to have {self.quotas[target]}"
        )
        return Step(partition.id, source, target, reason)


def _interleaved(first: Sequence[Partition], second: Sequence[Partition]) -> Iterator[Partition]:
    """Both mixed in proportion to their lengths, each in its order."""
    queue = [((i + 0.5) / len(first), 0, p) for i, p in enumerate(first)]
    queue += [((i + 0.5) / len(second), 1, p) for i, p in enumerate(second)]
    return (p for _, _, p in sorted(queue, key=lambda entry: entry[:2]))
