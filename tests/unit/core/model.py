"""The controller and its state on their own: commands in, records applied at once, as a committed log would."""

from collections.abc import Sequence

from minka.v1.cluster_pb2 import Cluster, HashFunction, Node, Partition
from minka.v1.coordinator_pb2 import ReplicaOutcome, ReplicaResult
from minka.v1.records_pb2 import RecordBatch
from minkad.core.controller import (
    ApplyPlan,
    Command,
    CreateCluster,
    CreateKeyspace,
    HandOver,
    MigrationCaps,
    Register,
    ReportReplicas,
    decide,
    schedule,
)
from minkad.core.placement import plan_reassign
from minkad.core.state import NotifyNode, State


class Controller:
    """One controller with no network: nodes answer when `deliver` is called."""

    def __init__(self, min_nodes: int = 1, caps: MigrationCaps | None = None) -> None:
        self.state = State()
        self.now_ms = 1_000
        self.caps = caps or MigrationCaps(per_node=4, cluster=32)
        self.undelivered: list[NotifyNode] = []
        self.run(CreateCluster(Cluster(id="c", name="test", min_nodes=min_nodes), ()))

    def run(self, command: Command) -> None:
        """Decide and apply; MinkaError when refused."""
        self._apply(RecordBatch(records=decide(self.state, command, self.now_ms)))

    def schedule(self) -> None:
        """Let the controller do what it does of its own accord, until nothing is left."""
        while records := schedule(self.state, self.caps, self.now_ms):
            self._apply(RecordBatch(records=records))

    def _apply(self, batch: RecordBatch) -> None:
        self.now_ms += 1
        self.undelivered += self.state.apply_batch(batch)

    def register(self, *names: str, incarnation: str = "1", holder_alive: bool = False) -> None:
        for name in names:
            node = Node(id=name, data_id=f"data-{name}", incarnation=incarnation, address=f"{name}:7400")
            self.run(Register(node, holder_alive))

    def deliver(self, unreachable: Sequence[str] = ()) -> None:
        """Tell the nodes their rows and take their answers, until nobody has anything to be told."""
        while any(effect.node not in unreachable for effect in self.undelivered):
            effect = next(e for e in self.undelivered if e.node not in unreachable)
            self.undelivered.remove(effect)
            partition = self.state.partitions[effect.partition_id]
            hosts = effect.node in partition.replicas
            outcome = ReplicaOutcome.REPLICA_OUTCOME_HOSTED if hosts else ReplicaOutcome.REPLICA_OUTCOME_DELETED
            result = ReplicaResult(
                partition_id=partition.id, partition_epoch=partition.partition_epoch, outcome=outcome
            )
            self.run(ReportReplicas(effect.node, [result]))

    def keyspace(self, name: str, partitions: int) -> list[Partition]:
        """A keyspace whose partitions are ONLINE."""
        self.run(CreateKeyspace(name, partitions, HashFunction.HASH_FUNCTION_MURMUR3, 1))
        self.deliver()
        keyspace = self.state.keyspace_named(name)
        assert keyspace is not None
        return [p for p in self.state.partitions.values() if p.keyspace_id == keyspace.id]

    def reassign(self, to: Sequence[str] = ()) -> int:
        """Plan and apply; returns the operation's id. The migrations are not carried out yet."""
        plan = plan_reassign(self.state, {}, to, (), self.now_ms)
        self.run(ApplyPlan(plan, "tester", "test"))
        self.schedule()
        operation = self.state.running_operation()
        assert operation is not None
        return operation.id

    def hand_over(self, partition_id: int) -> None:
        """The source asks for the hand-over, as it does once the target has everything."""
        partition = self.state.partitions[partition_id]
        self.run(HandOver(partition.leader, partition.id, partition.partition_epoch, partition.adding_replicas[0]))

    def counts(self) -> dict[str, int]:
        """Partitions led, by node."""
        counts = dict.fromkeys(self.state.nodes, 0)
        for partition in self.state.partitions.values():
            if partition.leader:
                counts[partition.leader] += 1
        return counts
