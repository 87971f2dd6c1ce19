"""The controller and its state, without a network: commands go in, and their records are applied at once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from minka.cluster.in_sync import has_everything
from minka.cluster.key_ranges import is_by_ranges
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import AssignedReplicas, Plan, PlanReassignRequest
from minka.v1.cluster_pb2 import Cluster, Durability, HashFunction, Node, Operation, Partition
from minka.v1.coordinator_pb2 import AlterIsrRequest, HandOverRequest, IsrChange
from minka.v1.records_pb2 import Record, RecordBatch
from minkad.core.controller.decision import Command
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.membership import CreateCluster, FailNodes, Register
from minkad.core.controller.mover import MigrationCaps
from minkad.core.controller.node_events import ControllerFailover
from minkad.core.controller.reassigns import ApplyPlan
from minkad.core.controller.row_answers import ReplicaReport, ReportReplicas
from minkad.core.controller.schedule import Scheduler
from minkad.core.placement import plan_reassign
from minkad.core.state import ALL, Effect, NotifyNode, State, is_up, range_of
from minkad.core.state.partitions import Partitions
from tests.unit.core.deciding import records_of


def refused(code: Code) -> pytest.RaisesExc[MinkaError]:
    return pytest.RaisesExc(MinkaError, check=lambda e: e.code is code)


def changed(partition: Partition, change: Callable[[Partition], None]) -> Partition:
    """A copy of the row with the change, and the next partition_epoch."""
    row = Partition()
    row.CopyFrom(partition)
    change(row)
    row.partition_epoch += 1
    return row


def check_indexes(state: State) -> None:
    """Check that the indexes find the same rows as a search through all rows."""
    rows = state.partitions
    fresh = Partitions.of_encoded(rows.encoded())
    for row in state.tombstones.values():
        fresh.index_copies(None, row)
    for name in ("leaderless", "yielding", "splitting", "merging"):
        assert set(getattr(rows, name)) == set(getattr(fresh, name)), name
    for name in ("copies", "led", "of_keyspace"):
        found, expected = ({key: set(ids) for key, ids in getattr(of, name).items() if ids} for of in (rows, fresh))
        assert found == expected, name
    for keyspace in state.keyspaces.values():
        if is_by_ranges(keyspace):
            ranges = [range_of(rows[id_]) for id_ in rows.in_order(keyspace.id)]
            assert ranges == sorted(range_of(row) for row in rows.values() if row.keyspace_id == keyspace.id)


class Controller:
    """A controller without a network. Nodes get their rows and answer when `deliver` is called."""

    def __init__(self, min_nodes: int = 1, caps: MigrationCaps | None = None) -> None:
        self.state = State()
        self._scheduler = Scheduler()
        self.now_ms = 1_000
        self.caps = caps or MigrationCaps(per_node=4, cluster=32)
        self.low_disks: frozenset[str] = frozenset()
        self.undelivered: list[NotifyNode] = []
        self.log: list[bytes] = []
        self.after_record: Callable[[], None] = lambda: None
        self.run(CreateCluster(Cluster(id="c", name="test", min_nodes=min_nodes), ()))

    def run(self, command: Command) -> None:
        """Decide the command, and apply its records. Raises MinkaError if the command is refused."""
        self._apply(records_of(self.state, command, self.now_ms))

    def schedule(self) -> None:
        """Let the controller do its automatic work until nothing is left."""
        for _ in range(10_000):
            if not self.schedule_once():
                return
        raise AssertionError("the controller never comes to rest")

    def schedule_once(self) -> bool:
        """Let the controller do one batch of its automatic work; returns False if there was none."""
        records = self._scheduler.next_steps(self.state, self.caps, self.now_ms, self.low_disks)
        self._apply(records)
        return bool(records)

    def _apply(self, records: Iterable[Record]) -> None:
        batch = RecordBatch()
        for record in records:
            batch.records.append(record)
            self.undelivered += self._each(self.state.apply(batch.records[-1]))
            self.after_record()
        self.now_ms += 1
        if batch.records:
            self.log.append(batch.SerializeToString())

    def _each(self, effects: Sequence[Effect]) -> Iterator[NotifyNode]:
        for effect in effects:
            assert isinstance(effect, NotifyNode), effect
            ids = (
                self.state.partitions.copies.get(effect.node, ())
                if effect.partition_id == ALL
                else [effect.partition_id]
            )
            yield from (NotifyNode(effect.node, id_) for id_ in ids)

    def replace_controller(self) -> None:
        """Replace the controller with a new one, which knows only the state and continues the work."""
        fresh = State()
        for batch in self.log:
            fresh.apply_batch(RecordBatch.FromString(batch))
        assert fresh.to_snapshot() == self.state.to_snapshot()
        self.state = State.from_snapshot(fresh.to_snapshot())
        self._scheduler = Scheduler()
        rows = [*self.state.partitions.values(), *self.state.tombstones.values()]
        everything = [(n, p.id) for p in rows for n in (*p.replicas, *p.removing_replicas)]
        self.undelivered = [NotifyNode(node, partition_id) for node, partition_id in everything]
        self.run(ControllerFailover())

    # Nodes

    def register(
        self,
        *names: str,
        incarnation: str = "1",
        holder_alive: bool = False,
        zone: str = "",
        capacity: int = 0,
        weight: int = 0,
    ) -> None:
        for name in names:
            node = Node(id=name, data_id=f"data-{name}", incarnation=incarnation, address=f"{name}:7400")
            node.zone, node.capacity_bytes, node.weight = zone, capacity, weight
            self.run(Register(node, holder_alive))

    def fail(self, *names: str) -> None:
        """Fail the nodes one after the other. After each failure, leaders take the failed node out of their in-sync
        sets.
        """
        for name in names:
            self.run(FailNodes({name: "no heartbeat for 1.5 s"}))
            self.take_out_absent()

    def deliver(self, unreachable: Sequence[str] = ()) -> None:
        """Deliver rows to nodes, and their answers, until each node that is up knows all its rows."""

        def reaches(effect: NotifyNode) -> bool:
            return effect.node not in unreachable and is_up(self.state.nodes.get(effect.node))

        while any(map(reaches, self.undelivered)):
            effect = next(filter(reaches, self.undelivered))
            self.undelivered = [e for e in self.undelivered if e != effect]
            row = self.state.row(effect.partition_id)
            if row is None:
                continue
            hosts = effect.node in row.replicas and effect.node not in row.removing_replicas
            hosted, deleted = ([(row.id, row.partition_epoch)], ()) if hosts else ((), [row.id])
            self.run(ReportReplicas([ReplicaReport(effect.node, hosted, deleted)]))

    # Leaders

    def alter_isr(self, row: Partition, isr: Sequence[str], eligible: Sequence[str] | None = None) -> None:
        """Change the in-sync set, as the leader would. `eligible`: by default, the replicas outside of `isr` that have
        all entries.
        """
        change = IsrChange(
            partition_id=row.id,
            leader_epoch=row.leader_epoch,
            partition_epoch=row.partition_epoch,
            isr=isr,
            eligible=[node for node in has_everything(row) if node not in isr] if eligible is None else eligible,
        )
        self.run(AlterIsrRequest(node_id=row.leader, changes=[change]))

    def take_out_absent(self) -> None:
        """Let each leader that is up take the nodes that are down, by the table, out of its in-sync set."""
        for row in list(self.state.partitions.values()):
            left = [node for node in self.state.partitions[row.id].isr if is_up(self.state.nodes[node])]
            if row.leader and is_up(self.state.nodes[row.leader]) and len(left) < len(row.isr):
                self.alter_isr(self.state.partitions[row.id], left)

    def catch_up(self) -> None:
        """Let every replica that is up join its in-sync set."""
        for row in list(self.state.partitions.values()):
            behind = [
                n
                for n in row.replicas
                if n not in row.isr and n not in row.removing_replicas and is_up(self.state.nodes[n])
            ]
            if row.leader and behind:
                self.alter_isr(row, [*row.isr, *behind])

    def hand_over(self, partition_id: int) -> None:
        """Hand over the partition, as its leader does once the successor has all entries."""
        row = self.state.partitions[partition_id]
        self.run(
            HandOverRequest(
                node_id=row.leader, partition_id=row.id, partition_epoch=row.partition_epoch, target=row.successor
            )
        )

    def hand_over_all(self) -> None:
        """Let every leader that has a successor hand over."""
        for row in list(self.state.partitions.values()):
            if row.successor:
                self.hand_over(row.id)

    def settle(self, unreachable: Sequence[str] = ()) -> None:
        """Let everything happen that needs neither a person nor a change of the nodes."""
        for _ in range(1_000):
            before = len(self.log)
            self.schedule()
            self.deliver(unreachable)
            self.take_out_absent()
            self.catch_up()
            self.hand_over_all()
            if len(self.log) == before:
                return
        raise AssertionError("the cluster never comes to rest")

    # People

    def keyspace(
        self, name: str, partitions: int, replicas: int = 1, min_insync: int = 0, **more: bool
    ) -> list[Partition]:
        """Create a keyspace, and let its partitions become ONLINE."""
        durability = Durability.DURABILITY_ASYNC if more.get("volatile") else Durability.DURABILITY_SYNC
        murmur3, unclean = HashFunction.HASH_FUNCTION_MURMUR3, more.get("unclean", False)
        self.run(CreateKeyspace(name, partitions, murmur3, replicas, min_insync, durability, unclean))
        self.deliver()
        keyspace = self.state.keyspace_named(name)
        assert keyspace is not None
        return [p for p in self.state.partitions.values() if p.keyspace_id == keyspace.id]

    def plan(
        self,
        to: Sequence[str] = (),
        drain: Sequence[str] = (),
        weights: dict[str, float] | None = None,
        partitions: dict[int, Sequence[str]] | None = None,
        sizes: dict[int, int] | None = None,
        **wishes: Any,
    ) -> Plan:
        wanted = [AssignedReplicas(partition_id=p, replicas=nodes) for p, nodes in (partitions or {}).items()]
        request = PlanReassignRequest(to=to, drain=drain, weights=weights, partitions=wanted, **wishes)
        return plan_reassign(self.state, sizes or {}, request, self.now_ms)

    def begin(self, plan: Plan) -> int:
        """Apply the plan; returns the operation's id. No migration has begun yet."""
        self.run(ApplyPlan(plan, "tester", "test"))
        return max(self.state.operations)

    def reassign(self, to: Sequence[str] = ()) -> int:
        """Plan a reassignment, and apply the plan; returns the operation's id. The migrations have not ended yet."""
        operation = self.begin(self.plan(to))
        self.schedule()
        return operation

    def operation(self, operation_id: int) -> Operation:
        return self.state.operations[operation_id]

    def counts(self) -> dict[str, int]:
        """Return, for each node, the number of partitions that it leads."""
        counts = dict.fromkeys(self.state.nodes, 0)
        for partition in self.state.partitions.values():
            if partition.leader:
                counts[partition.leader] += 1
        return counts


def led_by_others() -> Controller:
    """Two nodes. Since athens was away, byzantium leads all partitions, also those that athens should lead."""
    c = Controller()
    c.register("athens", "byzantium")
    c.keyspace("flights", 4, replicas=2)
    c.fail("athens")
    c.register("athens", incarnation="2")
    c.deliver()
    c.catch_up()
    return c
