"""What the node knows of itself: for /readyz and /livez, and for the metrics."""

from collections import Counter
from collections.abc import Iterable, Sequence

from minka.in_sync import is_under_min_insync, missing_in_sync
from minka.v1.cluster_pb2 import NodeState, PartitionState
from minkad.clock import boottime
from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.member import Member
from minkad.http.metrics import Lag, Snapshot
from minkad.http.server import Check
from minkad.shard.manager import ReplicaManager
from minkad.telemetry import Telemetry


class Health:
    """Reads, and never waits. `replay_to` is the Raft index that was known to be committed at the start."""

    def __init__(
        self, coordinator: Coordinator, member: Member, manager: ReplicaManager, telemetry: Telemetry, replay_to: int
    ) -> None:
        self.telemetry = telemetry
        self._coordinator = coordinator
        self._member = member
        self._manager = manager
        self._replay_to = replay_to

    def is_replayed(self) -> bool:
        """Whether everything that was committed at the start is applied."""
        applied: int = self._coordinator.driver.applied_index
        return applied >= self._replay_to

    def is_live(self) -> bool:
        """Whether the process works: it answers this on its event loop, and its log can be written."""
        return all(check.ok for check in self.checks() if check.needed_for_live)

    def checks(self) -> Sequence[Check]:
        """In the order in which a start passes them."""
        leader = self._coordinator.leader()
        applied = self._coordinator.driver.applied_index
        return (
            Check("loop", True, "the event loop answers", False, True),
            Check("replayed", self.is_replayed(), f"applied {applied} of {self._replay_to} entries", True, False),
            Check(
                "controller",
                leader is not None,
                f"the active controller is {leader.id}"
                if leader
                else "no quorum of voters, or an election is under way",
                True,
                False,
            ),
            Check(
                "table", bool(self._coordinator.state.cluster.id), "the partition table has not come yet", True, False
            ),
            Check("registered", self._member.registered.is_set(), "not registered at the controller", True, False),
            Check("clearance", self._member.has_clearance(), "no clearance: nothing is served", True, False),
        )

    def snapshot(self) -> Snapshot:
        """The gauges at this moment."""
        coordinator, node = self._coordinator, self._member.node
        state, raft = coordinator.state, coordinator.driver.raw.basic_status()
        partitions = state.partitions.values()
        missing = [missing_in_sync(p) for p in partitions]
        roles = Counter(
            "leader" if p.leader == node.id else "follower"
            for p in state.partitions_on(node.id)
            if node.id in p.replicas
        )
        return Snapshot(
            node=node.id,
            cluster=state.cluster.name,
            zone=node.zone,
            version=node.version,
            raft_term=raft.term,
            raft_commit_index=raft.commit,
            raft_applied_index=coordinator.driver.applied_index,
            is_controller=coordinator.active is not None,
            clearance_remaining_seconds=self._member.clearance.remaining(boottime()),
            nodes=_by_state((n.state for n in state.nodes.values()), NodeState.items(), "NODE_STATE_"),
            partitions=_by_state((p.state for p in partitions), PartitionState.items(), "PARTITION_STATE_"),
            replicas=roles,
            migrations_running=self._member.running_migrations(),
            under_replicated=sum(number > 0 for number in missing),
            missing_in_sync=sum(missing),
            under_min_insync=sum(is_under_min_insync(p, state.keyspaces[p.keyspace_id]) for p in partitions),
            elections=sum(p.leader_epoch for p in partitions),  # each has made it one more
            unclean_elections=sum(p.unclean_elections for p in partitions),
            lags={node: Lag(*lag) for node, lag in self._manager.follower_lags().items()},
        )


def _by_state(states: Iterable[int], names: Iterable[tuple[str, int]], prefix: str) -> dict[str, int]:
    """How many are in each state, by its name in lower case; also those with none, so that a series never ends."""
    found = Counter(states)
    return {name.removeprefix(prefix).lower(): found[number] for name, number in names if number}
