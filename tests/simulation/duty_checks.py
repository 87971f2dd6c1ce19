"""Checks of the rules for duties, made from outside: with the true time and every process's true state."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from minka.v1.cluster_pb2 import NodeState
from minka.v1.duties_pb2 import AssignmentState, Duty, FillBy, OnFailure, Shard, ShardState
from minka.v1.shards_pb2 import HeldDuty
from minkad.core.duties.control.rooms import is_canary
from minkad.core.duties.control.suspects import is_suspect
from minkad.core.state import Assignment, DutyState, weight_of
from tests.simulation.shard_process import ShardProcess
from tests.simulation.trace import Violation

if TYPE_CHECKING:
    from tests.simulation.duty_world import DutyWorld

_A: Final = AssignmentState
_MAY_HAVE: Final = (_A.ASSIGNMENT_STATE_ASSIGNED, _A.ASSIGNMENT_STATE_ATTACHED, _A.ASSIGNMENT_STATE_RELEASING)
_LOOK: Final = 0.25  # seconds between two checks for duties that no shard has
_LATE: Final = 0.02  # seconds by which a timer of the process's loop may be late
_INDEXES_EVERY: Final = 25  # changes of the tables between two checks of the indexes


class DutyChecks:
    """Watches the recorded rows and the delegates' actions. Its methods raise Violation."""

    def __init__(self, world: "DutyWorld") -> None:
        self._world = world
        self.duties = DutyState()  # the newest state that any replica has applied
        self._attached: dict[tuple[int, str], tuple[int, str]] = {}  # by duty: the newest epoch, and its process
        self._unattached: dict[int, float] = {}  # by duty: since when no shard has it although a shard has room
        self.recorded_at: dict[bytes, int] = {}  # by payload id: the index of the entry that brought it into the tables
        self._revisions = 0
        self._kept: dict[int, tuple[str, int]] = {}  # by duty: the absent shard, and the end of its grace
        self._settled_since: tuple[object, float] = (None, 0.0)

    def begin(self) -> None:
        """Check from now on."""
        self._world.after(_LOOK, self._look)

    # At each step

    def applied(self, duties: DutyState, index: int) -> None:
        """Check the state after the entry at `index`, when the first node has applied the entry."""
        changed = duties is not self.duties or duties.revision != self._revisions
        self.duties = duties
        if not changed:
            return
        self._revisions = duties.revision
        for row in duties.duties.values():
            self.recorded_at.setdefault(row.payload_id, index)
        self._check_kept(duties)
        for process in self._world.shards.processes():
            self._check_assigned(process)
        if not duties.revision % _INDEXES_EVERY:
            check_indexes(duties)

    def looked(self, process: ShardProcess) -> None:
        """Check a shard's process after a step."""
        self._check_records(process)
        self._check_in_time(process)
        self._check_assigned(process)
        others = [other for other in self._world.shards.processes() if other is not process]
        for number in process.delegate.acting:
            if not process.holds(number) or process.delegate.told[number].synthetic:
                continue
            for other in others:
                if other.holds(number):
                    raise Violation(
                        "one process holds a duty at a time",
                        f"{process.id} and {other.id} hold duty {number}, at the epochs {process.holds(number)} and "
                        f"{other.holds(number)}",
                    )

    def attaching(self, process: ShardProcess, duty: HeldDuty) -> None:
        """Check the epoch of a duty that a delegate is about to attach."""
        key = duty.duty, process.name if duty.synthetic else ""
        newest, holder = self._attached.get(key, (0, ""))
        if duty.epoch < newest or (duty.epoch == newest and holder != process.core.shard.incarnation):
            raise Violation(
                "epochs of a duty grow",
                f"{process.id} attaches duty {duty.duty} at epoch {duty.epoch}, but {holder} had it at epoch {newest}",
            )
        self._attached[key] = duty.epoch, process.core.shard.incarnation

    def stopped(self, process: ShardProcess) -> None:
        """Check that the delegate has no duties left, when the SDK has stopped the shard."""
        if process.delegate.acting:
            raise Violation(
                "a stopped shard has released everything", f"{process.id} still has {process.delegate.acting}"
            )

    def _check_assigned(self, process: ShardProcess) -> None:
        """Check that the table assigns to the process all duties that the process holds. While a shard may still hold a
        duty, the controller must not give the duty away.
        """
        for number in process.delegate.acting:
            if not (epoch := process.holds(number)):
                continue
            one = self.duties.assignment(number, process.name)
            shard = self.duties.shards.get(process.name)
            is_his = shard is not None and shard.incarnation == process.core.shard.incarnation
            if one is None or one.epoch != epoch or one.state not in _MAY_HAVE or not is_his:
                raise Violation(
                    "a held duty is assigned to its holder",
                    f"{process.id} holds duty {number} at epoch {epoch}, but the table has {one} of "
                    f"{shard.incarnation if shard is not None else 'nobody'}",
                )

    def _check_kept(self, duties: DutyState) -> None:
        """Check that a duty that is kept for an absent shard goes to another shard only after the grace."""
        now_ms = self._world.unix_ms()
        for number, (shard, until_ms) in self._kept.items():
            others = [one for one in duties.of_duty.get(number, ()) if one.shard != shard]
            if now_ms < until_ms and (any(one.holds for one in others) or number in self._nowhere(duties, number)):
                raise Violation(
                    "a duty is kept until the grace ends",
                    f"duty {number} was kept for {shard} for {until_ms - now_ms} ms more, but its assignments are "
                    f"{duties.of_duty.get(number)}",
                )
        self._kept = {
            number: (name, shard.away_until_ms)
            for name, shard in duties.shards.items()
            if shard.state == ShardState.SHARD_STATE_AWAY
            for number in duties.on_shard.get(name, ())
            if not (duties.duties[number].synthetic or is_suspect(duties.duties[number]))
        }

    def _nowhere(self, duties: DutyState, number: int) -> dict[int, None]:
        row = duties.duties.get(number)
        return duties.nowhere.get(row.pallet, {}) if row is not None else {}

    def _check_records(self, process: ShardProcess) -> None:
        """Check that the SDK and the delegate have the same duties attached. Lazy duties that the delegate has ended
        don't count.
        """
        live = {number for number, record in process.core.hosting.records.items() if record.live}
        acting = process.delegate.acting
        over = {number for number in live - set(acting) if process.delegate.told[number].lazy}
        if live - over != set(acting):
            raise Violation(
                "the SDK and the delegate hold the same duties", f"{process.id}: {sorted(live)}, and {sorted(acting)}"
            )

    def _check_in_time(self, process: ShardProcess) -> None:
        """Check that a process whose clearance has ended has released all duties, or has ended itself. If a
        process has continued only a moment ago after a SIGSTOP, it may still have duties.
        """
        awake = self._world.now - process.slept_at > self._world.controller_settings.shards.clearance
        over = process.now() > process.core.until + _LATE
        if process.delegate.acting and over and awake and process.machine.ends_process and process.core.may_connect:
            raise Violation(
                "everything is released when the clearance ends",
                f"{process.id} acts for {sorted(process.delegate.acting)} although its clearance has ended "
                f"{process.now() - process.core.until:.2f} s ago",
            )

    # After the faults have ended: every duty soon has a shard if a shard has room

    @property
    def bound(self) -> float:
        """The seconds until other shards have the duties of a process that died: the failure timeout, and 3 s for the
        steps after it.
        """
        return self._world.controller_settings.shards.failure_timeout + 3.0

    def _look(self) -> None:
        world = self._world
        world.after(_LOOK, self._look)
        settled = self._settled()
        if settled is None:
            self._unattached.clear()
            return
        for number, row in self.duties.duties.items():
            if row.synthetic or row.deleting or self._is_attached(row) or not self._has_room(row):
                self._unattached.pop(number, None)
                continue
            since = self._unattached.setdefault(number, world.now)
            if world.now - since > self.bound:
                could = ", ".join(shard.name for shard in self._open_to(row))
                raise Violation(
                    "a duty with room is attached",
                    f"no shard has had duty {number} ({row.pallet}/{row.id}) for {world.now - since:.2f} s, though "
                    f"{could} could; its assignments are {self.duties.assignments(number)}",
                )

    def _settled(self) -> object:
        """The controller and its term; None if these have changed since the last check, if a node isn't up, or before
        the faults have ended.
        """
        world, active = self._world, self._world.active()
        if not world.is_calm or active is None:
            return None
        for machine in world.machines:
            node, process = active.coordinator.state.nodes.get(machine.id), machine.process
            if node is None or node.state != NodeState.NODE_STATE_LIVE or process is None or not process.built:
                return None
            if not process.member.has_clearance():
                return None
        controller = active, active.driver.raw.basic_status().term
        if self._settled_since[0] != controller:
            self._settled_since = controller, world.now
            return None
        return controller

    def _is_attached(self, row: Duty) -> bool:
        return any(process.holds(row.number) for process in self._world.shards.processes())

    def _has_room(self, row: Duty) -> bool:
        holder = self.duties.holder(row.number)
        if holder is not None and holder.state == _A.ASSIGNMENT_STATE_KEPT:
            return False
        return bool(self._open_to(row))

    def _open_to(self, row: Duty) -> list[Shard]:
        pallet = self.duties.pallets[row.pallet]
        if row.was_attached and pallet.on_failure == OnFailure.ON_FAILURE_LEAVE:
            return []
        found = [shard for shard in self.duties.shards.values() if self._takes(shard, row)]
        if pallet.HasField("canary"):  # duties of the canary go only to shards of its version
            chosen = is_canary(row, pallet.canary)
            with_version = [(shard.version == pallet.canary.version) == chosen for shard in found]
            if not all(with_version):
                return []  # not checked: some of these shards have the other version
        pinned = self.duties.shards.get(row.pinned_to)
        if pinned is not None and pinned.state == ShardState.SHARD_STATE_LIVE and not self._is_emptied(pinned):
            return [shard for shard in found if shard is pinned]
        return found

    def _is_emptied(self, shard: Shard) -> bool:
        active = self._world.active()
        node = active.coordinator.state.nodes.get(shard.node) if active is not None else None
        return node is not None and node.emptied

    def _takes(self, shard: Shard, row: Duty) -> bool:
        """True if the shard is live, and has room for the duty besides its present duties."""
        process = self._world.shards.process_named(shard.name)
        is_there = process is not None and process.core.shard.incarnation == shard.incarnation
        if not is_there or shard.state != ShardState.SHARD_STATE_LIVE:
            return False
        if self._is_emptied(shard) or is_quarantined(shard, row):
            return False
        capacity = next((one for one in shard.pallets if one.pallet == row.pallet), None)
        if capacity is None:
            return False
        load, balancer = self.duties.load(shard.name, row.pallet), self.duties.pallets[row.pallet].balancer
        holder = self.duties.holder(row.number)
        own = 1 if holder is not None and holder.shard == shard.name else 0
        if capacity.HasField("capacity") and load.weight + (1 - own) * weight_of(row) > capacity.capacity:
            return False
        if capacity.HasField("capacity") and not capacity.capacity:
            return False
        if balancer.fill_by == FillBy.FILL_BY_COUNT:
            return load.duties + 1 - own <= balancer.fill_limit
        if balancer.fill_by == FillBy.FILL_BY_WEIGHT:
            return load.weight + (1 - own) * weight_of(row) <= balancer.fill_limit
        return True

    # The end

    def missing(self, duties: DutyState) -> str:
        """Check all duties at the end of a run; returns the first error, or ""."""
        if duties.deleting:
            return f"duty {next(iter(duties.deleting))} is not deleted"
        for host in self._world.shards.hosts:
            if missing := self._missing_of(duties, host.process, host.name):
                return missing
        for row in duties.duties.values():
            if missing := self._unplaced(duties, row):
                return f"duty {row.number} ({row.pallet}/{row.id}): {missing}"
        return ""

    def _missing_of(self, duties: DutyState, process: ShardProcess | None, name: str) -> str:
        shard = duties.shards.get(name)
        if process is None or shard is None or shard.incarnation != process.core.shard.incarnation:
            return f"shard {name} is not there"
        if shard.state != ShardState.SHARD_STATE_LIVE:
            return f"shard {name} is {ShardState.Name(shard.state)}"
        recorded = {one.duty: one.epoch for one in duties.on_shard.get(name, {}).values()}
        if recorded != process.delegate.acting:
            return f"{process.id} acts for {process.delegate.acting}, but the table assigns {recorded}"
        if any(one.state != _A.ASSIGNMENT_STATE_ATTACHED for one in duties.on_shard.get(name, {}).values()):
            return f"shard {name} has duties that are not attached"
        for number, epoch in process.delegate.acting.items():
            told, row = process.core.hosting.records[number].duty, duties.duties[number]
            if process.holds(number) != epoch or process.delegate.told[number].version != row.version:
                return f"{process.id} has another version of duty {number} than the table, or no clearance"
            assert told.payload == row.payload_id[::-1], f"{process.id} has another payload of duty {number}"
        synthetic = (number for one in shard.pallets for number in duties.synthetic.get(one.pallet, {}))
        lacking = [n for n in synthetic if n not in recorded and not is_quarantined(shard, duties.duties[n])]
        return f"{name} lacks the synthetic duty {lacking[0]}" if lacking else ""

    def _unplaced(self, duties: DutyState, row: Duty) -> str:
        if row.synthetic:
            return ""
        holder = duties.holder(row.number)
        if holder is None or holder.state != _A.ASSIGNMENT_STATE_ATTACHED:
            return "is not attached" if self._open_to(row) else ""
        pinned = duties.shards.get(row.pinned_to)
        if pinned is not None and holder.shard != pinned.name and self._takes(pinned, row):
            return f"is on {holder.shard}, not on the shard to which it is pinned"
        return ""


def is_quarantined(shard: Shard, row: Duty) -> bool:
    """True if the duty is quarantined for the shard's version of the application, on this shard or on all shards."""
    return any(one.shard in (shard.name, "") and one.shard_version == shard.version for one in row.quarantines)


def check_indexes(duties: DutyState) -> None:
    """Check that the indexes equal indexes that are computed from the rows alone."""
    numbers = {(row.pallet, row.id): row.number for row in duties.duties.values()}
    pallets, synthetic, nowhere = (defaultdict[str, set[int]](set) for _ in range(3))
    on_shard: defaultdict[str, dict[int, Assignment]] = defaultdict(dict)
    loads: Counter[tuple[str, str, str]] = Counter()
    releasing: Counter[str] = Counter()
    for row in duties.duties.values():
        pallets[row.pallet].add(row.number)
        if row.synthetic:
            synthetic[row.pallet].add(row.number)
        assignments = duties.assignments(row.number)
        holding = [one for one in assignments if one.state != _A.ASSIGNMENT_STATE_PREPARING]
        assert row.synthetic or len(holding) <= 1, f"duty {row.number} is on {holding}"
        if not row.synthetic and not row.deleting and not holding:
            nowhere[row.pallet].add(row.number)
        for one in assignments:
            on_shard[one.shard][row.number] = one
            releasing[one.shard] += one.state == _A.ASSIGNMENT_STATE_RELEASING
        for one in holding if not row.synthetic else ():
            loads[one.shard, row.pallet, "duties"] += 1
            loads[one.shard, row.pallet, "weight"] += weight_of(row)
    kept = {
        (shard, pallet, name): getattr(load, name)
        for shard, some in duties.loads.items()
        for pallet, load in some.items()
        for name in ("duties", "weight")
    }
    assert duties.numbers == numbers, "numbers"
    assert _sets(duties.in_pallet) == _sets(pallets), "in_pallet"
    assert _sets(duties.synthetic) == _sets(synthetic), "synthetic"
    assert _sets(duties.nowhere) == _sets(nowhere), "nowhere"
    assert {k: v for k, v in duties.on_shard.items() if v} == on_shard, "on_shard"
    assert {k: v for k, v in kept.items() if v} == {k: v for k, v in loads.items() if v}, "loads"
    assert {k: v for k, v in duties.releasing.items() if v} == {k: v for k, v in releasing.items() if v}, "releasing"
    assert set(duties.deleting) == {row.number for row in duties.duties.values() if row.deleting}, "deleting"
    assert set(duties.suspected) == {n for n, row in duties.duties.items() if row.HasField("suspicion")}, "suspected"
    assert set(duties.pinned) == {row.number for row in duties.duties.values() if row.pinned_to}, "pinned"
    assert set(duties.of_duty) <= {number for number, row in duties.duties.items() if not row.synthetic}, "of_duty"
    assert set(duties.of_synthetic) <= {number for number, row in duties.duties.items() if row.synthetic}, (
        "of_synthetic"
    )
    epochs = (one.epoch for number in duties.duties for one in duties.assignments(number))
    assert max(epochs, default=0) < duties.next_epoch, "next_epoch"
    assert max(duties.duties, default=0) < duties.next_number, "next_number"


def _sets(by_pallet: "dict[str, dict[int, None]] | defaultdict[str, set[int]]") -> dict[str, set[int]]:
    return {pallet: set(some) for pallet, some in by_pallet.items() if some}
