"""The node's view of itself, for /readyz, /livez and the metrics."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import nan
from typing import Final

from minka.v1.admin_pb2 import DescribeNodeResponse, NodeCheck, VoterContact
from minka.v1.cluster_pb2 import NodeState, PartitionState
from minka.v1.duties_pb2 import ShardState
from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.member import Member
from minkad.coordinator.table_counting import TableCounting
from minkad.data_port.port_watch import Watch
from minkad.data_port.raft import RaftTransport
from minkad.http.metrics import Lag, Snapshot
from minkad.http.server import Check
from minkad.process.clock import boottime
from minkad.process.telemetry import Telemetry
from minkad.replication.manager import ReplicaManager
from minkad.storage.disk_space import DiskWatch
from minkad.storage.log_database import LogDatabase

SILENT: Final = 3.0  # seconds, in which a healthy voter is heard several times, even without a leader


class Health:
    """Reads, and waits only in `refresh`.

    `replay_to` is the Raft index that was known to be committed at the start.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        member: Member,
        manager: ReplicaManager,
        telemetry: Telemetry,
        replay_to: int,
        disk: DiskWatch,
        log_db: LogDatabase,
        transport: RaftTransport,
        counting: TableCounting,
        watch: Watch,
    ) -> None:
        self.telemetry = telemetry
        self._coordinator = coordinator
        self._member = member
        self._manager = manager
        self._replay_to = replay_to
        self._counting = counting
        self._disk = disk
        self._log_db = log_db
        self._transport = transport
        self._watch = watch

    def is_replayed(self) -> bool:
        """True if everything that was committed at the start is applied."""
        applied: int = self._coordinator.driver.applied_index
        return applied >= self._replay_to

    def knows_table(self) -> bool:
        """True if this node has everything decided before it registered, and hears a controller: gRPC answers that it
        is registered, and its row comes by Raft, after the decisions made while it was down.
        """
        own = self._member.node
        row = self._coordinator.state.nodes.get(own.id)
        is_own = row is not None and row.incarnation == own.incarnation
        return is_own and self.is_replayed() and self._member.registered.is_set()

    def is_live(self) -> bool:
        """True if the process works: its event loop answers this, and its log can be written."""
        return all(check.ok for check in self.checks() if check.needed_for_live)

    def checks(self) -> Sequence[Check]:
        """The checks, in the order in which a start passes them."""
        leader = self._coordinator.leader()
        applied = self._coordinator.driver.applied_index
        return (
            Check("loop", True, "the event loop answers", False, True),
            Check("replayed", self.is_replayed(), f"applied {applied} of {self._replay_to} entries", True, False),
            Check(
                "controller",
                leader is not None,
                f"the active controller is {leader.id}" if leader else self._why_no_controller(),
                True,
                False,
            ),
            Check(
                "table", bool(self._coordinator.state.cluster.id), "the partition table has not come yet", True, False
            ),
            Check("registered", self._member.registered.is_set(), "not registered at the controller", True, False),
            Check("clearance", self._member.has_clearance(), "no clearance: nothing is served", True, False),
            Check("data port", not (silent := self._data_port_problem()), silent, True, False),
        )

    def _data_port_problem(self) -> str:
        """The fault of this node's data port, as seen by the active controller or by this node itself."""
        if self._member.withheld:
            return self._member.withheld
        own = self._watch.unanswered().get(self._member.node.id)
        return f"{self._member.node.data_address} does not answer this node itself: {own}" if own else ""

    async def refresh(self) -> None:
        """Count the rows of the table that have changed, in turns: `snapshot` has the totals."""
        await self._counting.count()

    def silent_voters(self) -> list[str]:
        """The other voters that this one has not heard from for a while; none on a node that isn't a voter."""
        driver, now = self._coordinator.driver, boottime()
        own = driver.raw.basic_status().id
        if own not in driver.conf_state.voters:
            return []  # only the leader talks to it
        heard = {voter: self._transport.last_heard(voter) for voter in sorted(driver.conf_state.voters) if voter != own}
        silent = [voter for voter, at in heard.items() if at is None or now - at > SILENT]
        return [node.id if (node := self._coordinator.node_with(voter)) else "?" for voter in silent]

    def is_founded(self) -> bool:
        """True if there is a cluster: its founders have to come together once."""
        return bool(self._coordinator.state.cluster.id)

    def _why_no_controller(self) -> str:
        silent, voters = self.silent_voters(), len(self._coordinator.driver.conf_state.voters)
        if not silent or 2 * (voters - len(silent)) > voters:
            return "no quorum of voters, or an election is under way"
        if not self.is_founded():
            return f"waiting for {', '.join(silent)}"
        return f"no quorum of voters: nothing is heard from {', '.join(silent)}"

    def describe(self, partitions: Iterable[int] = (), stories: bool = False) -> DescribeNodeResponse:
        """The node's answer to questions about itself, and about its copies of these partitions, perhaps with their
        stories.
        """
        coordinator, member, now = self._coordinator, self._member, boottime()
        raft, leader, checks = coordinator.driver.raw.basic_status(), coordinator.leader(), self.checks()
        # At one moment: else a clearance that ends in between would be neither held nor lapsed.
        serves, lapsed = member.clearance.holds(now), member.clearance.lapsed(now)
        return DescribeNodeResponse(
            node=member.node.id,
            cluster_id=coordinator.state.cluster.id,
            controller=leader.id if leader else "",
            is_controller=coordinator.active is not None,
            term=raft.term,
            applied_index=coordinator.driver.applied_index,
            table_version=coordinator.state.version,
            has_clearance=serves,
            clearance_lapsed_ms=None if lapsed is None else max(1, int(lapsed * 1000)),  # 0 would be now
            ready=all(check.ok for check in checks if check.needed_for_ready),
            checks=[NodeCheck(name=c.name, ok=c.ok, reason=c.reason) for c in checks if c.needed_for_ready],
            leads=self._manager.reporting.serving() if serves else 0,
            voters=[self._contact(voter, now) for voter in coordinator.driver.conf_state.voters if voter != raft.id],
            copies=self._manager.reporting.copies(partitions, stories=stories),
            stale_reads=self._manager.reporting.stale_reads(),
        )

    def _contact(self, voter: int, now: float) -> VoterContact:
        node, at = self._coordinator.node_with(voter), self._transport.last_heard(voter)
        return VoterContact(
            node=node.id if node else "?",
            address=node.address if node else "",
            heard_ms=None if at is None else int((now - at) * 1000),
        )

    def snapshot(self) -> Snapshot:
        """The gauges. Those about rows are as of the last `refresh`, all others as of now."""
        coordinator, node = self._coordinator, self._member.node
        state, raft = coordinator.state, coordinator.driver.raw.basic_status()
        rows = self._counting.counts
        own = rows.by_node[node.id]
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
            clock_offset_seconds=nan if (ahead := self._member.clock.ahead_ms) is None else ahead / 1000,
            nodes=_by_state(Counter(n.state for n in state.nodes.values()), NodeState.items(), "NODE_STATE_"),
            partitions=_by_state(rows.states, PartitionState.items(), "PARTITION_STATE_"),
            shards=_by_state(
                Counter(shard.state for shard in state.duties.shards.values()), ShardState.items(), "SHARD_STATE_"
            ),
            duties={pallet: len(state.duties.in_pallet.get(pallet, ())) for pallet in state.duties.pallets},
            duties_nowhere={pallet: len(state.duties.nowhere.get(pallet, ())) for pallet in state.duties.pallets},
            replicas={"leader": own["leads"], "follower": own["replicas"] - own["leads"]},
            migrations_running=self._member.running_migrations(),
            under_replicated=rows.under_replicated,
            missing_in_sync=rows.missing_in_sync,
            under_min_insync=rows.under_min_insync,
            elections=rows.elections,
            unclean_elections=rows.unclean_elections,
            damaged=len(self._manager.damaged()),
            lags={node: Lag(*lag) for node, lag in self._manager.reporting.follower_lags().items()},
            disk_total_bytes=self._disk.space.total_bytes,
            disk_free_bytes=self._disk.space.free_bytes,
            is_disk_low=self._disk.is_low,
            unsynced_seconds=self._log_db.unsynced_s(),
            data_port_answers=not self._data_port_problem(),
            data_ports_unanswered=len(self._watch.unanswered().keys() - {node.id}),
        )


def _by_state(found: Counter[int], names: Iterable[tuple[str, int]], prefix: str) -> dict[str, int]:
    """The number in each state, by its lower-case name; 0 for empty states, so that a series never ends."""
    return {name.removeprefix(prefix).lower(): found[number] for name, number in names if number}
