"""A node as its controller sees it: it registers, sends heartbeats, and answers rows like a data plane.

A fake node has no data and no table. Its steps of the protocol follow `minkad.replication` and
`minkad.core.replication`: a leader asks for changes of its in-sync sets (`IsrChanges`, `Leader`) and hands over to the
row's successor; a node deletes a removed replica before it acknowledges the row (`Adoption`).
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Node, Partition
from minka.v1.coordinator_pb2 import (
    AlterIsrRequest,
    AlterIsrResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    DiskSpace,
    HandOverRequest,
    HandOverResponse,
    HeartbeatRequest,
    IsrChange,
    LeaveRequest,
    MigrationPhase,
    MigrationProgress,
    RegisterRequest,
    ReplicaStats,
    UpdateReplicasRequest,
    UpdateReplicasResponse,
)

if TYPE_CHECKING:
    from tests.simulation.scale.world import ScaleWorld

HEARTBEAT_S: Final = 0.2
SYNC_S: Final = 0.002  # the time until a row is durable
DELETE_S: Final = 0.02
CATCH_UP_S: Final = 0.05  # the time in which a replica that lacks little catches up
COPY_S: Final = 0.5  # the time in which an added replica gets its copy
HAND_OVER_S: Final = 0.01
_RETRY_S: Final = 0.05
_POLL_S: Final = 0.02  # the time between two requests of a node that wants to stop
_MAX_CHANGES: Final = 1000  # changes of in-sync sets in one call
_MAX_STATS: Final = 500  # replicas' stats in one heartbeat

Answered = Callable[[UpdateReplicasResponse | MinkaError], None]


class FakeNode:
    """One node. It has one process at a time; a process that ends may be followed by a new one."""

    def __init__(self, world: "ScaleWorld", row: Node) -> None:
        self.id = row.id
        self.alive = True  # the process runs
        self.rows: dict[int, Partition] = {}
        self._world = world
        self._timeline = world.timeline
        self._row = Node()
        self._row.CopyFrom(row)
        self._starts = 1
        self._is_registered = True
        self._sequence = 0
        self._led: dict[int, None] = {}
        self._caught_up: dict[tuple[int, str], bool] = {}  # by partition and follower; False: still catching up
        self._to_ask: dict[int, None] = {}  # partitions whose in-sync sets the node wants to change
        self._is_asking = False
        self._handing_over: set[int] = set()
        self._copying: dict[tuple[int, str], None] = {}
        self._changed: dict[int, None] = {}  # partitions whose stats go into the next heartbeat

    # The process

    def begin(self) -> None:
        """Begin to send heartbeats, at some time within the first interval."""
        self._timeline.after(self._timeline.rng.random() * HEARTBEAT_S, self._beat, self._row.incarnation)

    def kill(self) -> None:
        """End the process, as by a power cut."""
        self.alive = self._is_registered = False
        self._stop_leading()

    def start(self) -> None:
        """Start a new process; it has the rows of the former one."""
        assert not self.alive, self.id
        self.alive = True
        self._new_incarnation()
        self._register()

    def restart(self, down_s: float) -> None:
        """Stop gracefully, and start again after `down_s` seconds."""
        request = ControlledShutdownRequest(node_id=self.id, incarnation=self._row.incarnation)

        def answered(answer: ControlledShutdownResponse | MinkaError) -> None:
            if isinstance(answer, MinkaError) or answer.remaining:
                self._timeline.after(_POLL_S, self.restart, down_s)
                return
            leave = LeaveRequest(node_id=self.id, incarnation=self._row.incarnation)
            self._world.call(self, "run", leave, lambda _: self._timeline.after(down_s, self.start))
            self.kill()

        self._world.call(self, "controlled_shutdown", request, answered)

    def _new_incarnation(self) -> None:
        self._starts += 1
        self._row.starts = self._starts
        self._row.incarnation = f"{self.id}-{self._starts}"
        self._stop_leading()

    def _stop_leading(self) -> None:
        for index in (self._led, self._caught_up, self._to_ask, self._handing_over, self._copying, self._changed):
            index.clear()
        self._is_asking = False

    def _register(self) -> None:
        if not self.alive:
            return
        self._is_registered = False
        incarnation = self._row.incarnation

        def answered(answer: object) -> None:
            if not self._is(incarnation):
                return
            if isinstance(answer, MinkaError):
                if answer.code is Code.NOT_REGISTERED:
                    self._new_incarnation()
                self._timeline.after(_RETRY_S, self._register)
                return
            self._is_registered = True
            self._beat(incarnation)

        self._world.call(self, "register", RegisterRequest(node=self._row), answered)

    def _is(self, incarnation: str) -> bool:
        """True if the process with this incarnation still runs."""
        return self.alive and self._row.incarnation == incarnation

    # Heartbeats

    def _beat(self, incarnation: str) -> None:
        if not self._is(incarnation) or not self._is_registered:
            return
        self._sequence += 1
        self._world.heartbeat(self, self._heartbeat())
        self._timeline.after(HEARTBEAT_S, self._beat, incarnation)

    def _heartbeat(self) -> HeartbeatRequest:
        changed = list(self._changed)[:_MAX_STATS]
        for partition_id in changed:
            del self._changed[partition_id]
        return HeartbeatRequest(
            node_id=self.id,
            incarnation=self._row.incarnation,
            sequence=self._sequence,
            applied_index=self._world.applied_index(),
            replicas=[ReplicaStats(partition_id=id_, bytes=4096, keys=32) for id_ in changed],
            from_start=True,  # each heartbeat reports all migrations
            migrations=[self._progress(id_, target) for id_, target in self._copying],
            disk=DiskSpace(total_bytes=1 << 40, free_bytes=1 << 39, low_mark_bytes=1 << 30),
        )

    @staticmethod
    def _progress(partition_id: int, target: str) -> MigrationProgress:
        phase = MigrationPhase.MIGRATION_PHASE_SHIP
        return MigrationProgress(partition_id=partition_id, target=target, bytes_total=4096, phase=phase)

    def refused(self, incarnation: str) -> None:
        """Register as a new process, since the controller has refused a heartbeat: it considers this process dead."""
        if self._is(incarnation) and self._is_registered:
            self._new_incarnation()
            self._register()

    # Rows

    def update_replicas(self, request: UpdateReplicasRequest, answered: Answered) -> None:
        """Take the rows that the controller sends. A dead process answers nothing."""
        if not self.alive:
            return
        if request.incarnation != self._row.incarnation:
            answered(MinkaError(Code.NOT_REGISTERED, f"{self.id} has a newer process"))
            return
        response, delay = UpdateReplicasResponse(), SYNC_S
        for row in request.partitions:
            self._adopt(row)
            if row.id in self.rows:
                response.hosted_ids.append(row.id)
                response.hosted_epochs.append(self.rows[row.id].partition_epoch)
            else:
                response.deleted_ids.append(row.id)
                delay = DELETE_S
        for partition_id, epoch in zip(request.known_ids, request.known_epochs, strict=True):
            row_here = self.rows.get(partition_id)
            if row_here is None or row_here.partition_epoch != epoch:
                response.unknown_ids.append(partition_id)
            else:
                self._adopt(row_here)  # the controller has confirmed that this row is the newest
        self._timeline.after(delay, answered, response)

    def _adopt(self, row: Partition) -> None:
        old = self.rows.get(row.id)
        if old is not None and row.partition_epoch < old.partition_epoch:
            return
        if self.id not in row.replicas:
            self.rows.pop(row.id, None)
            self._follow(row.id)
            return
        self.rows[row.id] = row
        if row.leader != self.id:
            self._follow(row.id)
            return
        if row.id not in self._led:
            self._led[row.id] = self._changed[row.id] = None
        self.consider(row.id)

    def _follow(self, partition_id: int) -> None:
        if partition_id in self._led:
            del self._led[partition_id]
            self._changed.pop(partition_id, None)
            for caught_up in [key for key in self._caught_up if key[0] == partition_id]:
                del self._caught_up[caught_up]
                self._copying.pop(caught_up, None)

    # The leader

    def consider(self, partition_id: int) -> None:
        """Do the leader's work for a partition after a change of its row, or of a node in this row."""
        if partition_id not in self._led or not self.alive:
            return
        row, world = self.rows[partition_id], self._world
        for node in row.replicas:
            key = (partition_id, node)
            if node in row.isr:
                self._caught_up.pop(key, None)
            elif key not in self._caught_up and world.is_up(node):
                self._caught_up[key] = False
                is_new = node in row.adding_replicas
                if is_new:
                    self._copying[key] = None
                self._timeline.after(COPY_S if is_new else CATCH_UP_S, self._catches_up, key)
        if self._wanted(row) != list(row.isr):
            self._ask_for([partition_id])
        if row.successor and partition_id not in self._handing_over:
            self._handing_over.add(partition_id)
            self._timeline.after(HAND_OVER_S, self._hand_over, partition_id)

    def _catches_up(self, key: tuple[int, str]) -> None:
        self._copying.pop(key, None)
        if key not in self._caught_up:
            return
        if self._world.is_up(key[1]):
            self._caught_up[key] = True
            self._ask_for([key[0]])
        else:
            del self._caught_up[key]

    def _wanted(self, row: Partition) -> list[str]:
        """The in-sync set that the leader wants: without absent nodes, and with all replicas that have caught up."""
        stay = [node for node in row.isr if node == self.id or not self._world.is_absent(node)]
        return stay + [n for n in row.replicas if n not in row.isr and self._caught_up.get((row.id, n), False)]

    def _ask_for(self, partition_ids: Iterable[int]) -> None:
        self._to_ask.update(dict.fromkeys(partition_ids))
        if not self._is_asking:
            self._is_asking = True
            self._timeline.after(0.0, self._ask, self._row.incarnation)

    def _ask(self, incarnation: str) -> None:
        """Ask the controller, in one call, for all due changes of in-sync sets. At most one call is under way."""
        if not self._is(incarnation):
            return
        self._is_asking = False
        asked = list(self._to_ask)[:_MAX_CHANGES]
        changes = []
        for partition_id in asked:
            del self._to_ask[partition_id]
            row = self.rows.get(partition_id)
            if row is None or partition_id not in self._led or (isr := self._wanted(row)) == list(row.isr):
                continue
            epochs = row.leader_epoch, row.partition_epoch
            changes.append(IsrChange(partition_id=row.id, leader_epoch=epochs[0], partition_epoch=epochs[1], isr=isr))
        if not changes:
            if self._to_ask:
                self._ask_for(())
            return

        def answered(answer: AlterIsrResponse | MinkaError) -> None:
            if not self._is(incarnation):
                return
            self._is_asking = False
            if isinstance(answer, MinkaError):
                self._timeline.after(_RETRY_S, self._ask_for, [change.partition_id for change in changes])
                return
            for result in answer.results:
                if result.HasField("partition"):
                    self._adopt(result.partition)
            if self._to_ask:
                self._ask_for(())

        self._is_asking = True
        self._world.call(self, "run", AlterIsrRequest(node_id=self.id, changes=changes), answered)

    def _hand_over(self, partition_id: int) -> None:
        row = self.rows.get(partition_id)
        if partition_id not in self._led or row is None or not row.successor:
            self._handing_over.discard(partition_id)
            return
        request = HandOverRequest(
            node_id=self.id,
            partition_id=partition_id,
            leader_epoch=row.leader_epoch,
            partition_epoch=row.partition_epoch,
            target=row.successor,
        )

        def answered(answer: HandOverResponse | MinkaError) -> None:
            self._handing_over.discard(partition_id)
            if isinstance(answer, MinkaError):
                self._timeline.after(_RETRY_S, self.consider, partition_id)
            elif self.alive:
                self._adopt(answer.partition)

        self._world.call(self, "run", request, answered)
