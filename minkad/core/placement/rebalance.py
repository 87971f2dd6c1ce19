"""Moves the fewest replicas until every node has its share (Fixed Partitions: "Moving partitions to newly added
members"). Replicas of a partition never share a node, and come to share a zone only if a node must be emptied."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from minka.cluster.in_sync import has_everything
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Keyspace, Partition, PartitionState
from minkad.core.placement.layout import Layout
from minkad.core.placement.moving import has_leader
from minkad.core.placement.quotas import ZoneLimits, even_quotas, filled_quotas
from minkad.core.placement.room import Room
from minkad.core.state import State, partition_name

_TRIES: Final = 500  # after this many failures in a row, the rest stays uneven
_FEW: Final = 1000  # with more partitions, nothing moves by way of a third node
_MAX_NAMES: Final = 8


@dataclass(frozen=True, slots=True)
class Step:
    """One replica's move."""

    partition_id: int
    source: str
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wishes:
    """The nodes on which replicas may be, and their weights. `gently`: no target gives up replicas. Nodes of
    `left_alone` neither take nor give up replicas. All other nodes that aren't targets have to be emptied; but those of
    `down` keep the replicas that no target can take.
    """

    targets: Sequence[str]
    weights: Mapping[str, float] = field(default_factory=dict)
    gently: bool = False
    left_alone: Collection[str] = ()
    down: Collection[str] = ()


class Rebalance:
    """One keyspace's steps. Partitions that an operation moves stay where the operation puts them."""

    def __init__(
        self, state: State, keyspace: Keyspace, rows: Sequence[Partition], layout: Layout, wishes: Wishes
    ) -> None:
        """`rows`: all rows of the keyspace."""
        self._state = state
        self._keyspace = keyspace
        self._layout = layout
        self._wishes = wishes
        self._targets = frozenset(wishes.targets)
        settled = [p for p in rows if p.id not in layout.moving]
        self._partitions = {p.id: p for p in settled if has_leader(p)}
        self._offline = [p for p in settled if p.id not in self._partitions]
        # By node, its replicas of the keyspace: before the first step, and after the steps so far.
        self._before = Counter(n for p in rows for n in layout.replicas[p.id])
        self._now = Counter(self._before)
        quotas = filled_quotas if wishes.gently else even_quotas
        limits = self._zone_limits(rows)
        kept = {node: count for node, count in self._before.items() if node in wishes.left_alone}
        shared = {node: count for node, count in self._before.items() if node not in kept}
        shares = quotas(shared, wishes.targets, wishes.weights, len(rows), layout.totals, limits)
        self.quotas = dict.fromkeys(shared, 0) | kept | shares  # by node: the replicas that it is to have in the end
        self._on: defaultdict[str, dict[int, None]] = defaultdict(dict)  # by node: the partitions that may leave it
        for id_ in self._partitions:
            for node in layout.replicas[id_]:
                self._on[node][id_] = None
        self._room = Room(layout, (n for n in wishes.targets if self._now[n] < self.quotas[n]))
        self.steps: list[Step] = []
        self.notes = [self._without_leader()] if self._offline else []

    def _without_leader(self) -> str:
        rows = self._offline
        data = sorted({node for row in rows for node in row.isr})
        return (
            f"{len(rows)} partitions of {self._keyspace.name} are OFFLINE and left alone "
            f"({some_names(map(self._name, rows))}); their data is on {some_names(data)}"
        )

    def _zone_limits(self, rows: Sequence[Partition]) -> ZoneLimits | None:
        """The limits for zones that follow from `Layout.fits`; None with one zone, or if no plan could keep them."""
        zones, replicas = self._layout.zones, self._layout.replicas
        targets = {zones[node] for node in self._wishes.targets}
        if len(targets) == 1:
            return None
        everywhere = most = 0
        for row in rows:
            has = {zones.get(node) for node in replicas[row.id]}
            everywhere += targets <= has
            most += 1 + len(replicas[row.id]) - len(has)
        can_have = most * len(targets) >= sum(self._before.values())
        return ZoneLimits(zones, everywhere, most) if can_have else None

    @property
    def minimum(self) -> int:
        """The least number of moves after which each node has as many replicas as after the steps.

        The quotas may differ from these numbers: zones, capacities and other replicas may keep nodes from their quotas.
        """
        return sum(max(0, before - self._now[node]) for node, before in self._before.items())

    def run(self) -> None:
        """Make the steps.

        Raises NOT_ENOUGH_NODES if a node that is up has to be emptied and can't be; NO_SOURCE or PARTITION_OFFLINE if
        the reason is a partition without a leader from which it could be copied; OPERATION_RUNNING if an operation
        leaves a replica on a node that has to be emptied, or if a target is still deleting an older copy.
        """
        surplus = [pair for node in sorted(self.quotas) for pair in self._surplus(node)]
        for partition, source in sorted(surplus, key=lambda s: (-self._size(s[0]), s[0].id)):
            self._move_if_possible(partition, source)
        for source in sorted(self.quotas):
            if not self._excess(source) or (self._wishes.gently and source in self._targets):
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

    def _rows_on(self, node: str) -> list[Partition]:
        return [self._partitions[id_] for id_ in sorted(self._on[node])]

    def _ranked(self, node: str) -> list[Partition]:
        """The partitions on the node, in the order in which they leave it. Those nearest to the mean size come first;
        led and followed partitions are mixed: with 2 led and 4 followed ones, 1 led for 2 followed.
        """
        mine, sizes = self._rows_on(node), self._layout.sizes
        mean = sum(sizes.get(p.id, 0) for p in mine) / max(1, len(mine))
        mine.sort(key=lambda p: (abs(sizes.get(p.id, 0) - mean), -p.id))
        if self._keyspace.replicas <= 1:
            return mine
        led = [p for p in mine if self._layout.replicas[p.id][0] == node]
        followed = [p for p in mine if self._layout.replicas[p.id][0] != node]
        return list(_interleaved(led, followed))

    def _surplus(self, node: str) -> list[tuple[Partition, str]]:
        excess = self._excess(node)
        return [(p, node) for p in self._ranked(node)[:excess]] if excess else []

    def _move_if_possible(self, partition: Partition, source: str) -> None:
        target = self._room.best(partition, source)
        if target is not None:
            self._move(partition, source, target)

    def _take_places(self, source: str) -> None:
        """Change earlier steps: a replica that was to go to a third node goes to a node with room instead, and one of
        the source's replicas goes to the third node.
        """
        if not self._room or not self._excess(source):
            return
        mine, layout = self._ranked(source), self._layout
        last = {step.partition_id: i for i, step in enumerate(self.steps)}
        hopeless = {source}
        tries = _TRIES
        for i in last.values():
            step = self.steps[i]
            if not self._room or not tries or not self._excess(source):
                return
            tries -= 1
            other = self._state.partitions[step.partition_id]
            if step.target in hopeless:
                continue
            target = self._room.best(other, step.target, but=step.source)
            if target is None:
                continue
            own = next((p for p in mine if self._holds(source, p) and layout.fits(p, source, step.target)), None)
            if own is None:
                hopeless.add(step.target)
            elif own.id != other.id:
                self._shift(other, step.target, target)
                self.steps[i] = self._step(other, step.source, target)
                self._move(own, source, step.target)
                tries = _TRIES

    def _holds(self, node: str, partition: Partition) -> bool:
        return node in self._layout.replicas[partition.id]

    def _move_by_way_of_another(self, source: str) -> bool:
        """No replica of the source fits on a node with room. So one of them goes to a third node, and a replica of the
        third node goes to a node with room. Returns True if this was possible.

        This costs one more move. With many partitions it isn't needed: some replica can nearly always go directly.
        """
        room = self._room
        if self._wishes.gently or not room or len(self._partitions) > _FEW:
            return False
        for middle in [n for n in self._wishes.targets if n != source and n not in room]:
            onward = next(((p, t) for p in self._rows_on(middle) if (t := room.best(p, middle))), None)
            first = next((p for p in self._ranked(source) if self._layout.fits(p, source, middle)), None)
            if onward is not None and first is not None and onward[0].id != first.id:
                self._move(onward[0], middle, onward[1])
                self._move(first, source, middle)
                return True
        return False

    def _leave_uneven(self, source: str) -> None:
        """Empty a source that is up and isn't a target, if need be into shared zones. Others keep what doesn't fit."""
        if source in self._targets:
            self.notes.append(
                f"{source} keeps {self._now[source]} replicas of {self._keyspace.name} instead of "
                f"{self.quotas[source]}: no other node can take one of them (zones, capacity, disks, other replicas)"
            )
            return
        anywhere = Room(self._layout, self._wishes.targets)
        stay: list[Partition] = []
        for partition in self._rows_on(source):
            target = anywhere.best(partition, source)
            if target is None:
                target = anywhere.best(partition, source, any_zone=True)
                self.notes += [f"{self._name(partition)} has to share a zone"] if target else []
            if target is not None:
                self._move(partition, source, target)
                anywhere.put(target)
                continue
            refusal = self._stuck(partition, source)
            if refusal.code is not Code.NOT_ENOUGH_NODES or source not in self._wishes.down:
                raise refusal
            stay.append(partition)
        offline = [p for p in self._offline if self._holds(source, p)]
        if offline and source not in self._wishes.down:
            raise unplannable(self._state, offline[0])
        if self._excess(source) > len(stay) + len(offline):
            raise self._comes(source)
        if stay:
            self.notes.append(self._keeps(source, stay))

    def _keeps(self, source: str, stay: Sequence[Partition]) -> str:
        """The note about the replicas that stay on a node that is down: the reason, and the remedy."""
        return (
            f"{source} keeps {len(stay)} replicas of {self._keyspace.name} ({some_names(map(self._name, stay))}): each "
            "LIVE node has a replica there, is over capacity_bytes, or has no room on its disk. Let a node join and "
            f"plan again, or start {source}"
        )

    def _comes(self, source: str) -> MinkaError:
        """The error for an unended operation that leaves a replica on a node that has to be emptied."""
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
        if (replicas := self._keyspace.replicas) > len(targets):
            text = f"{self._keyspace.name} keeps {replicas} replicas, and {len(targets)} nodes would be left"
            return MinkaError(Code.NOT_ENOUGH_NODES, text)
        return MinkaError(
            Code.NOT_ENOUGH_NODES,
            f"{name} can't leave {source}: none of the other {len(targets)} nodes can take it, for it has a replica "
            "there, or it is over capacity_bytes, or its disk has no room",
        )

    def _name(self, partition: Partition) -> str:
        return partition_name(self._state.keyspaces, partition)

    def _move(self, partition: Partition, source: str, target: str) -> None:
        self._shift(partition, source, target)
        self.steps.append(self._step(partition, source, target))

    def _shift(self, partition: Partition, source: str, target: str) -> None:
        self._layout.move(partition.id, source, target)
        del self._on[source][partition.id]
        self._on[target][partition.id] = None
        self._now[source] -= 1
        self._now[target] += 1
        for node in (source, target):
            if self._now[node] < self.quotas[node]:
                self._room.put(node)
            else:
                self._room.remove(node)

    def _step(self, partition: Partition, source: str, target: str) -> Step:
        what = "partitions" if self._keyspace.replicas <= 1 else "replicas"
        leaves = f"is to have {self.quotas[source]}"
        if source not in self._targets:
            leaves = "is not among the chosen nodes"
        reason = (
            f"{source} has {self._before[source]} {what} of {self._keyspace.name} and {leaves}; "
            f"{target} has {self._before[target]} and is to have {self.quotas[target]}"
        )
        return Step(partition.id, source, target, reason)


def unplannable(state: State, partition: Partition) -> MinkaError:
    """The refusal to plan for a partition without a leader."""
    name = partition_name(state.keyspaces, partition)
    where = f"its data is on {', '.join(has_everything(partition))}"
    if partition.state == PartitionState.PARTITION_STATE_OFFLINE:
        return MinkaError(Code.NO_SOURCE, f"{name} is OFFLINE, so it can't be planned for; {where}")
    return MinkaError(Code.PARTITION_OFFLINE, f"{name} has no leader yet, so it can't be planned for; {where}")


def some_names(names: Iterable[str]) -> str:
    """The names; of more than eight, the first eight and the number of the others."""
    named = list(names)
    more = f" and {len(named) - _MAX_NAMES} more" if len(named) > _MAX_NAMES else ""
    return ", ".join(named[:_MAX_NAMES]) + more


def _interleaved(first: Sequence[Partition], second: Sequence[Partition]) -> Iterator[Partition]:
    """Both sequences, mixed in proportion to their lengths; each stays in its order."""
    queue = [((i + 0.5) / len(first), 0, p) for i, p in enumerate(first)]
    queue += [((i + 0.5) / len(second), 1, p) for i, p in enumerate(second)]
    return (p for _, _, p in sorted(queue, key=lambda entry: entry[:2]))
