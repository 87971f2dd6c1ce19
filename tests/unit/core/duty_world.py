"""A controller's state, and shards that do what its rows tell them, without a network or a clock."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from minka.v1.duties_pb2 import AssignmentState, Duty, Pallet, PalletCapacity, Shard, ShardState
from minka.v1.duty_api_pb2 import (
    ChangeDutiesRequest,
    ChangePalletsRequest,
    DutyChange,
    DutyName,
    DutyPin,
    DutySpec,
    PalletChange,
    PlanRebalanceRequest,
)
from minka.v1.records_pb2 import Record
from minka.v1.shards_pb2 import (
    FailedDuty,
    Holding,
    LeaveShardRequest,
    ReportShardsRequest,
    ShardReport,
    ShardReported,
    WeighedDuty,
)
from minkad.core.controller.decision import Command
from minkad.core.controller.mover import MigrationCaps
from minkad.core.controller.schedule import Scheduler
from minkad.core.duties.control.distribution import GATHER_MS, Distributor, describe_unplaced
from minkad.core.duties.control.duty_rebalance import BalancePallet, plan_rebalance
from minkad.core.duties.control.shard_lives import FailShards, RegisterShard
from minkad.core.state import DutyState, State
from tests.unit.core.deciding import records_of

_A = AssignmentState
CAPS = MigrationCaps(per_node=1, cluster=1)
TEN = [f"d{number}" for number in range(10)]  # ids of duties
PIECES = 1000  # steps after which `follow` and `settle` fail


@dataclass
class Process:
    """A shard's process. `held` has the epoch of each duty that the process holds, by the duty's number."""

    name: str
    incarnation: str
    held: dict[int, int] = field(default_factory=dict)


class DutyWorld:
    """The controller's tables of duties, and the processes of shards. Only a test lets time (`now_ms`) pass."""

    def __init__(self) -> None:
        self.state = State()
        self.now_ms = 1_000_000
        self.processes: dict[str, Process] = {}
        self.releases = True  # if true, processes release duties when they are told to
        self.distributor = Distributor()
        self._scheduler = Scheduler()
        self._starts = 0
        self._last_epoch: dict[int, int] = {}

    @property
    def duties(self) -> DutyState:
        """The tables of duties, pallets and shards."""
        return self.state.duties

    def do(self, command: Command) -> None:
        """Decide a command, and apply its records. Raises MinkaError."""
        for record in records_of(self.state, command, self.now_ms):
            self.apply(record)

    def apply(self, record: Record) -> None:
        """Apply a record to the state."""
        self.state.apply(record)

    def look(self) -> list[Record]:
        """Return the records about duties that the controller would now propose automatically."""
        return self.distributor.next_facts(self.state, self.now_ms)

    def follow(self) -> None:
        """Let the controller do its automatic work, including its wait for more shards, until nothing is left."""
        gathered_at = -1  # the revision of the tables when the wait for more shards ended
        for _ in range(PIECES):
            facts = self.distributor.next_facts(self.state, self.now_ms)
            facts = facts or self._scheduler.next_steps(self.state, CAPS, self.now_ms)
            for record in facts:
                self.apply(record)
            if not facts and gathered_at == self.duties.revision:
                return
            if not facts:
                gathered_at = self.duties.revision
                self.now_ms += GATHER_MS * any(self.duties.nowhere.values())
        raise AssertionError("the controller's automatic work does not end")

    def settle(self) -> None:
        """Let the controller work, and the processes do what the rows tell them, until nothing is left to do."""
        for _ in range(PIECES):
            self.follow()
            worked = [self.work(process) for process in list(self.processes.values())]
            if not any(worked):
                return
        raise AssertionError("the work of the shards does not end")

    def wait(self, milliseconds: int) -> None:
        """Let time pass."""
        self.now_ms += milliseconds
        self.settle()

    # Clients

    def pallet(self, id_: str, **fields: object) -> None:
        """Create a pallet."""
        self.do(ChangePalletsRequest(changes=[PalletChange(create=Pallet(id=id_, **fields))]))  # type: ignore[arg-type]

    def change_pallet(self, id_: str, **fields: object) -> None:
        """Replace a pallet's settings."""
        self.do(ChangePalletsRequest(changes=[PalletChange(update=Pallet(id=id_, **fields))]))  # type: ignore[arg-type]

    def create(self, pallet: str, ids: Iterable[str], **fields: object) -> None:
        """Create equal duties."""
        specs = [DutySpec(pallet=pallet, id=id_, **fields) for id_ in ids]  # type: ignore[arg-type]
        self.do(ChangeDutiesRequest(changes=[DutyChange(create=spec) for spec in specs]))

    def delete(self, pallet: str, *ids: str) -> None:
        """Delete duties."""
        self.do(ChangeDutiesRequest(changes=[DutyChange(delete=DutyName(pallet=pallet, id=id_)) for id_ in ids]))

    def pin(self, pallet: str, id_: str, shard: str) -> None:
        """Pin a duty to a shard ("": unpin the duty)."""
        pin = DutyPin(duty=DutyName(pallet=pallet, id=id_), shard=shard)
        self.do(ChangeDutiesRequest(changes=[DutyChange(pin=pin)]))

    def rebalance(self, pallet: str) -> int:
        """Begin the moves that the balancer proposes. Returns the number of moves."""
        plan = plan_rebalance(self.state, PlanRebalanceRequest(pallet=pallet), self.now_ms)
        if plan.moves:
            self.do(BalancePallet(plan))
        return len(plan.moves)

    # Shards

    def join(
        self,
        name: str,
        *,
        capacity: int | None = None,
        pallets: tuple[str, ...] = ("feeds",),
        version: str = "1",
        node: str = "",
        grace_ms: int = 0,
    ) -> Process:
        """Register a shard's process."""
        self._starts += 1
        process = Process(name, f"p{self._starts}")
        said = [PalletCapacity(pallet=pallet, capacity=capacity) for pallet in pallets]
        row = Shard(
            name=name, incarnation=process.incarnation, version=version, node=node, grace_ms=grace_ms, pallets=said
        )
        self.do(RegisterShard(row, holder_alive=name in self.processes))
        self.processes[name] = process
        return process

    def kill(self, name: str) -> None:
        """End the process as by a crash; its clearance ends, too."""
        del self.processes[name]
        self.do(FailShards({name: "no heartbeat"}))

    def leave(self, name: str) -> None:
        """Stop the process gracefully: it ends when it has no duty left."""
        self.do(LeaveShardRequest(shard=name, incarnation=self.processes[name].incarnation))

    def work(self, process: Process) -> bool:
        """Let the process do what the rows tell it; returns True if anything changed."""
        report = ShardReport()
        for one in list(self.duties.on_shard.get(process.name, {}).values()):
            holding = Holding(duty=one.duty, epoch=one.epoch)
            match one.state:
                case _A.ASSIGNMENT_STATE_ASSIGNED:
                    assert one.epoch > self._last_epoch.get(one.duty, 0) or self._is_synthetic(one.duty), one
                    self._last_epoch[one.duty] = one.epoch
                    process.held[one.duty] = one.epoch
                    report.attached.append(holding)
                case _A.ASSIGNMENT_STATE_RELEASING if self.releases:
                    process.held.pop(one.duty, None)
                    report.released.append(holding)
                case _A.ASSIGNMENT_STATE_PREPARING:
                    report.prepared.append(holding)
        self.check_held_once()
        has_news = bool(report.attached or report.released or report.prepared)
        before = self.duties.revision
        if has_news:
            self.report(process, report)
        if self.duties.shards[process.name].state in (ShardState.SHARD_STATE_GONE, ShardState.SHARD_STATE_AWAY):
            assert not process.held
            del self.processes[process.name]
        return has_news and self.duties.revision != before

    def report(self, process: Process, report: ShardReport) -> None:
        """Send the process's report."""
        said = ShardReported(shard=process.name, incarnation=process.incarnation, report=report)
        self.do(ReportShardsRequest(reports=[said]))

    def _is_synthetic(self, number: int) -> bool:
        return self.duties.duties[number].synthetic

    def fail_to_attach(self, name: str, id_: str, pallet: str = "feeds", reason: str = "ValueError: no") -> None:
        """Report that the shard has given up a duty, since its delegate raised at each try to attach it."""
        row, process = self.row(id_, pallet), self.processes[name]
        one = self.duties.assignment(row.number, name)
        assert one is not None
        if one.holds:
            process.held.pop(row.number, None)
        failed = FailedDuty(holding=Holding(duty=row.number, epoch=one.epoch), reason=reason)
        self.report(process, ShardReport(failed=[failed]))

    def release(self, name: str, id_: str, pallet: str = "feeds") -> None:
        """Report that the process has released a duty without being told to."""
        row, process = self.row(id_, pallet), self.processes[name]
        holding = Holding(duty=row.number, epoch=process.held.pop(row.number))
        self.report(process, ShardReport(released=[holding]))

    def finish(self, name: str, id_: str, pallet: str = "feeds") -> None:
        """Report that a lazy duty has ended: the delegate no longer reports it."""
        row, process = self.row(id_, pallet), self.processes[name]
        holding = Holding(duty=row.number, epoch=process.held.pop(row.number))
        self.report(process, ShardReport(finished=[holding]))

    def weigh(self, name: str, id_: str, weight: int, pallet: str = "feeds") -> None:
        """Report another weight for a duty."""
        row, process = self.row(id_, pallet), self.processes[name]
        weighed = WeighedDuty(holding=Holding(duty=row.number, epoch=process.held[row.number]), weight=weight)
        self.report(process, ShardReport(weights=[weighed]))

    # Views

    def row(self, id_: str, pallet: str = "feeds") -> Duty:
        """The duty's row."""
        row = self.duties.named(pallet, id_)
        assert row is not None, id_
        return row

    def where(self, id_: str, pallet: str = "feeds") -> str:
        """The shard that has the duty; "" if no shard has it."""
        holder = self.duties.holder(self.row(id_, pallet).number)
        return "" if holder is None else holder.shard

    def why_unplaced(self, id_: str, pallet: str = "feeds") -> str:
        """Return the explanation that people get if no shard has the duty."""
        return describe_unplaced(self.state, self.distributor, self.row(id_, pallet), self.now_ms)

    def counts(self, pallet: str = "feeds") -> dict[str, int]:
        """The number of the pallet's duties on each registered shard."""
        return {name: self.duties.load(name, pallet).duties for name in sorted(self.processes)}

    def check_held_once(self) -> None:
        """Check that no two processes hold the same duty, unless the duty is synthetic."""
        holders: dict[int, str] = {}
        for process in self.processes.values():
            for number in process.held:
                row = self.duties.duties.get(number)
                if row is not None and not row.synthetic:
                    assert number not in holders, f"{number} is held by {holders[number]} and {process.name}"
                    holders[number] = process.name

    def check_tables(self) -> None:
        """Check that the indexes equal indexes computed from the rows, and that a snapshot restores all tables."""
        restored = State.from_snapshot(self.state.to_snapshot())
        assert restored == self.state
        for index in ("numbers", "deleting", "pinned", "suspected", "takes"):
            assert getattr(restored.duties, index) == getattr(self.duties, index), index
        for index in ("attaching", "preparing"):
            assert set(getattr(restored.duties, index)) == set(getattr(self.duties, index)), index
        for index in ("in_pallet", "synthetic", "nowhere", "on_shard", "taking", "releasing"):
            assert _without_empty(getattr(restored.duties, index)) == _without_empty(getattr(self.duties, index)), index
        loads = [
            {(s, p): load for s, of in one.loads.items() for p, load in of.items() if any(load)}
            for one in (restored.duties, self.duties)
        ]
        assert loads[0] == loads[1]


def _without_empty(index: dict[str, object]) -> dict[str, object]:
    return {key: some for key, some in index.items() if some}
