"""Requests of clients and people about pallets and duties, and checks of the answers."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import (
    ApplyPlanRequest,
    CancelOperationRequest,
    PauseOperationRequest,
    ResumeOperationRequest,
)
from minka.v1.cluster_pb2 import OperationState
from minka.v1.duties_pb2 import Balancer, BalancerKind, Canary, FillBy, OnFailure, Pallet
from minka.v1.duty_api_pb2 import (
    ChangeDutiesRequest,
    ChangePalletsRequest,
    ComparePalletRequest,
    Consistency,
    DutyChange,
    DutyName,
    DutyPin,
    DutySpec,
    ExplainDutyRequest,
    GetDutiesRequest,
    GetPalletsRequest,
    GetShardsRequest,
    PalletChange,
    PlanRebalanceRequest,
)
from minka.v1.shards_pb2 import HeldDuty
from minkad.core.duties.control.duty_rebalance import held_back, plan_rebalance
from minkad.core.duties.control.rooms import rooms
from minkad.core.state import DutyState, State
from tests.simulation.availability import FIRST_UNIX_MS
from tests.simulation.process import Process
from tests.simulation.shard_stream import ShardDoors
from tests.simulation.trace import Violation

if TYPE_CHECKING:
    from tests.simulation.duty_world import DutyWorld

_REFUSALS: Final = (
    *(Code.UNKNOWN_PALLET, Code.PALLET_EXISTS, Code.PALLET_IN_USE, Code.UNKNOWN_DUTY, Code.DUTY_EXISTS),
    *(Code.UNKNOWN_SHARD, Code.VERSION_MISMATCH, Code.INVALID_DUTY, Code.INVALID_ARGUMENT),
)
_TRY_AGAIN: Final = 0.3  # seconds until the next try, after an answer that leaves the outcome unknown
_TIMEOUT: Final = 10.0  # seconds
_MAX_DUTIES: Final = 12  # in a pallet
_LEVELS: Final = (
    Consistency.CONSISTENCY_UNSPECIFIED,
    Consistency.CONSISTENCY_QUORUM,
    Consistency.CONSISTENCY_LEADER,
    Consistency.CONSISTENCY_VOTERS,
    Consistency.CONSISTENCY_ALL,
)

_PENALTIES_FADE_MS: Final = 500

Name = tuple[str, str]
NOTHING: Final = b""  # the payload id of a missing duty


class DutyClients:
    """Clients that change duties. They repeat each change until they know its outcome; from then on, the duty's state
    must agree with this outcome.
    """

    def __init__(self, world: "DutyWorld") -> None:
        self._world = world
        self._rng = rng = world.duty_rng
        self._pause = rng.choice((0.05, 0.1, 0.3))
        self._payloads = 0
        self._names = [(pallet, f"d{n}") for pallet in world.pallets for n in range(rng.randint(2, _MAX_DUTIES))]
        self._specs = {name: self._spec(name) for name in self._names}
        self._expected: dict[Name, set[bytes]] = {name: {NOTHING} for name in self._names}  # possible payload ids
        self._busy: set[Name] = set()
        self._over: set[Name] = set()  # lazy duties that a delegate has ended at least once
        self._pallets: dict[str, tuple[int, int]] = {}  # the creation's time, and the last acknowledged version
        self._ended = False

    def _spec(self, name: Name) -> DutySpec:
        rng = self._rng
        kind = rng.choice(("synthetic", "stationary", "lazy", *("plain",) * 5))
        return DutySpec(
            pallet=name[0],
            id=name[1],
            synthetic=kind == "synthetic",
            stationary=kind == "stationary",
            lazy=kind == "lazy",
        )

    def begin(self) -> None:
        """Start the requests."""
        for pallet in self._world.pallets:
            self._world.after(0.7, self._create_pallet, pallet)
        self._world.after(1.0, self._next)

    def end(self) -> None:
        """Stop the requests, and resume all paused operations."""
        self._ended = True
        self._world.after(0.5, self._resume_all)

    def ends(self, duty: HeldDuty) -> None:
        """Note that a delegate no longer reports this lazy duty."""
        self._over.add((duty.pallet, duty.id))

    # Requests

    def _doors(self) -> tuple[Process, ShardDoors] | None:
        """Return a process to ask, most often the active controller's, with its services for duties; None if no process
        can be asked.
        """
        world, processes = self._world, self._world.processes()
        active = world.active()
        process = active if active is not None and self._rng.random() < 0.9 else None
        if process is None and processes:
            process = self._rng.choice(processes)
        if process is None or world.now < process.machine.stopped_until:
            return None
        assert process.doors is not None
        return process, process.doors

    def _ask(
        self,
        ask: Callable[[Process, ShardDoors], Awaitable[object]],
        told: Callable[[MinkaError | None], None] = lambda _: None,
        at: Process | None = None,
    ) -> None:
        """Send the request `at` a process, or at any; call `told` once with the error, or with None if the request
        succeeded.
        """
        found = self._doors() if at is None or at.doors is None else (at, at.doors)
        is_told = False

        def tell(outcome: MinkaError | None) -> None:
            nonlocal is_told
            if not is_told:
                is_told = True
                told(outcome)

        unknown = MinkaError(Code.OUTCOME_UNKNOWN, "no answer")
        if found is None:
            self._world.after(0.05, tell, unknown)
            return
        process, doors = found

        async def asking() -> None:
            try:
                await ask(process, doors)
            except MinkaError as error:
                if process.alive:
                    tell(error)
            else:
                if process.alive:
                    tell(None)

        def give_up() -> None:
            """Check once a second if the asked process can still answer; if it can't, the outcome is unknown."""
            if process.alive and process.machine.process is process and not is_told:
                self._world.after(1.0, give_up)
            else:
                tell(unknown)

        process.spawn(asking())
        self._world.after(1.0, give_up)

    def _next(self) -> None:
        if self._ended:
            return
        self._world.after(self._rng.expovariate(1 / self._pause), self._next)
        changes = (self._create, self._create, self._update, self._delete, self._pin)
        people = (self._rebalance, self._rebalance, self._pause_operation, self._cancel, self._look)
        others = (self._change_pallet, self._delete_pallet, *people)
        self._rng.choice(changes if self._rng.random() < 0.7 else others)()

    # Duties

    def _free(self, *, existing: bool) -> list[Name]:
        free = [name for name in self._names if name not in self._busy]
        return [name for name in free if (self._expected[name] != {NOTHING}) == existing]

    def _payload_id(self) -> bytes:
        self._payloads += 1
        return self._payloads.to_bytes(16, "big")

    def _create(self) -> None:
        names = self._free(existing=False)
        some = self._rng.sample(names, min(len(names), self._rng.choice((1, 2, 6))))
        payloads = {name: self._payload_id() for name in some}
        specs = [self._with(name, payloads[name], weight=True) for name in some]
        self._change([DutyChange(create=spec) for spec in specs], payloads)

    def _with(self, name: Name, payload_id: bytes, *, weight: bool) -> DutySpec:
        spec = DutySpec()
        spec.CopyFrom(self._specs[name])
        spec.payload_id, spec.payload_bytes = payload_id, len(payload_id)
        if weight:
            spec.weight = self._rng.choice((1, 1, 2, 5, 9))
        return spec

    def _update(self) -> None:
        names = self._free(existing=True)
        some = self._rng.sample(names, min(len(names), self._rng.choice((1, 1, 3))))
        payloads = {name: self._payload_id() for name in some}
        specs = [self._with(name, payloads[name], weight=self._rng.random() < 0.5) for name in some]
        self._change([DutyChange(update=spec) for spec in specs], payloads)

    def _delete(self) -> None:
        if names := self._free(existing=True):
            name = self._rng.choice(names)
            self._change([DutyChange(delete=DutyName(pallet=name[0], id=name[1]))], {name: NOTHING})

    def _pin(self) -> None:
        names = [name for name in self._free(existing=True) if not self._specs[name].synthetic]
        shards = list(self._world.checks.duties.shards)
        if not names or not shards:
            return
        name, shard = self._rng.choice(names), self._rng.choice(["", *shards, *shards])
        pin = DutyPin(duty=DutyName(pallet=name[0], id=name[1]), shard=shard)
        request = ChangeDutiesRequest(changes=[DutyChange(pin=pin)])
        self._ask(lambda _, to: to.duty_requests.change_duties(request, _TIMEOUT))

    def _change(self, changes: list[DutyChange], payloads: dict[Name, bytes]) -> None:
        """Make all of the changes or none, in one request; repeat it until its outcome is known."""
        if not changes:
            return
        request = ChangeDutiesRequest(changes=changes, consistency=self._rng.choice(_LEVELS))
        before = {name: set(self._expected[name]) for name in payloads}
        self._busy |= set(payloads)
        is_open = False  # True if an earlier try may have succeeded

        def told(error: MinkaError | None) -> None:
            nonlocal is_open
            if error is not None and error.code is Code.CONSISTENCY_NOT_REACHED:
                error = None  # a majority has committed the change, so it is done
            if error is not None and error.code not in _REFUSALS:
                is_open = True
                for name, payload_id in payloads.items():
                    self._expected[name] = before[name] | {payload_id}
                self._world.after(_TRY_AGAIN, ask)
                return
            self._busy -= set(payloads)
            if error is None:
                self._world.say("client", "changed", f"{sorted(payloads)} {changes[0].WhichOneof('change')}")
            may_be_lost = error is None and request.consistency == Consistency.CONSISTENCY_LEADER
            for name, payload_id in payloads.items():
                possible = before[name] | {payload_id} if is_open or may_be_lost else before[name]
                if error is None and not may_be_lost:
                    possible = {payload_id}
                elif error is not None and error.code is Code.UNKNOWN_DUTY and len(payloads) == 1:
                    self._check_gone(name, possible)
                    possible = {NOTHING}
                self._expected[name] = possible
            self._read_at_former_controllers(list(payloads))

        def ask() -> None:
            self._ask(lambda process, to: self._ask_change(process, to, request), told)

        ask()

    def _read_at_former_controllers(self, names: list[Name]) -> None:
        """Read duties whose change has ended at the nodes that are deposed and still take themselves for the active
        controller: they must not answer with an older state.
        """
        newest = self._world.active()
        for process in self._world.processes():
            if process is not newest and process.coordinator.active is not None:
                for name in names:
                    if not self._specs[name].lazy:
                        self._read(name, process)

    def _read(self, name: Name, at: Process) -> None:
        expected = self._expected[name]

        async def read(process: Process, to: ShardDoors) -> None:
            request = GetDutiesRequest(names=[DutyName(pallet=name[0], id=name[1])])
            try:
                (status,) = (await to.duty_requests.get_duties(request)).duties
            except MinkaError as error:
                if error.code is not Code.UNKNOWN_DUTY:
                    raise
                found = NOTHING
            else:
                found = NOTHING if status.duty.deleting else status.duty.payload_id
            is_unchanged = name not in self._busy and self._expected[name] is expected
            if process.alive and is_unchanged and found not in expected:
                raise Violation(
                    "a read is not stale",
                    f"{'/'.join(name)}: {process.machine.id} answered {found.hex() or 'that it does not exist'}; "
                    f"it must be one of {sorted(one.hex() for one in expected)}",
                )

        self._ask(read, at=at)

    async def _ask_change(self, process: Process, to: ShardDoors, request: ChangeDutiesRequest) -> None:
        level = request.consistency
        asked = self._members(process, everybody=level == Consistency.CONSISTENCY_ALL)
        await to.duty_requests.change_duties(request, _TIMEOUT)
        if process.alive and level in (Consistency.CONSISTENCY_VOTERS, Consistency.CONSISTENCY_ALL):
            still = asked & self._members(process, everybody=level == Consistency.CONSISTENCY_ALL)
            self._check_durable(sorted(still), [_payload_of(change) for change in request.changes])

    def _members(self, process: Process, *, everybody: bool) -> set[int]:
        conf_state = process.driver.conf_state
        return {*conf_state.voters, *(conf_state.learners if everybody else ())}

    def _check_durable(self, members: list[int], payloads: list[bytes]) -> None:
        """Check that all `members` have the payloads on their disks."""
        world = self._world
        for payload_id in payloads:
            index = world.checks.recorded_at.get(payload_id)
            for raft_id in members if index is not None else ():
                machine = world.machine_with(raft_id)
                assert index is not None
                if machine is not None and not machine.disk.has(index, world.oracle.terms[index]):
                    raise Violation(
                        "a change is on all nodes that it was to reach",
                        f"a client was told that {machine.id} has payload {payload_id.hex()}, but its disk lacks "
                        f"entry {index}",
                    )

    def _check_gone(self, name: Name, possible: set[bytes]) -> None:
        """Check an answer that says that the duty doesn't exist."""
        if NOTHING not in possible and name not in self._over:
            raise Violation("an acknowledged change is not lost", f"{'/'.join(name)} is gone")

    # Pallets

    def _create_pallet(self, pallet: str) -> None:
        row = self._pallet(pallet)

        def told(error: MinkaError | None) -> None:
            if error is not None and error.code is not Code.PALLET_EXISTS:
                self._world.after(_TRY_AGAIN, self._create_pallet, pallet)

        request = ChangePalletsRequest(changes=[PalletChange(create=row)])
        self._ask(lambda _, to: to.duty_requests.change_pallets(request, _TIMEOUT), told)

    def _pallet(self, pallet: str) -> Pallet:
        rng = self._rng
        kind = rng.choice([kind for kind in BalancerKind.values() if kind])
        fill_by = rng.choice(FillBy.values())
        row = Pallet(
            id=pallet,
            balancer=Balancer(kind=kind, max_difference=rng.choice((0, 1, 2)), fill_by=fill_by, fill_limit=20),
            manual=rng.random() < 0.1,
            on_failure=rng.choice((OnFailure.ON_FAILURE_UNSPECIFIED, OnFailure.ON_FAILURE_LEAVE)),
            warm=rng.random() < 0.4,
            moves_per_shard=rng.choice((0, 1, 2)),
        )
        if rng.random() < 0.1:
            row.canary.CopyFrom(Canary(version="v2", percent=rng.choice((5, 50, 100))))
        return row

    def _change_pallet(self) -> None:
        row = self._pallet(self._rng.choice(self._world.pallets))
        request = ChangePalletsRequest(changes=[PalletChange(update=row)], consistency=self._rng.choice(_LEVELS))

        async def change(process: Process, to: ShardDoors) -> None:
            (now,) = (await to.duty_requests.change_pallets(request, _TIMEOUT)).pallets
            if process.alive and request.consistency != Consistency.CONSISTENCY_LEADER:
                self._pallets[now.id] = max(self._pallets.get(now.id, (0, 0)), (now.created_ms, now.version))

        self._ask(change)

    def _delete_pallet(self) -> None:
        """Delete a pallet, and create it again. The cluster refuses to delete a pallet that has duties."""
        pallet = self._rng.choice(self._world.pallets)
        request = ChangePalletsRequest(changes=[PalletChange(delete=pallet)])
        self._ask(
            lambda _, to: to.duty_requests.change_pallets(request, _TIMEOUT), lambda _: self._create_pallet(pallet)
        )

    # Plans and operations

    def _rebalance(self) -> None:
        request = PlanRebalanceRequest(pallet=self._rng.choice(self._world.pallets), reason="simulation")

        async def rebalance(process: Process, to: ShardDoors) -> None:
            plan = await to.duty_requests.plan_rebalance(request)
            await process.admin_requests.apply_plan(ApplyPlanRequest(plan=plan, requested_by="simulation"))

        self._ask(rebalance)

    def _pause_operation(self) -> None:
        async def pause(process: Process, _: ShardDoors) -> None:
            running = process.coordinator.controller().decided.running_operations()
            if running:
                request = PauseOperationRequest(id=running[-1].id)
                await process.admin_requests.run(request)

        self._ask(pause)

    def _cancel(self) -> None:
        async def cancel(process: Process, _: ShardDoors) -> None:
            for operation in process.coordinator.controller().decided.running_operations():
                if operation.rebalance.pallet:
                    request = CancelOperationRequest(id=operation.id, requested_by="simulation")
                    await process.admin_requests.run(request)

        self._ask(cancel)

    def _resume_all(self) -> None:
        self._world.after(0.5, self._resume_all)

        async def resume(process: Process, _: ShardDoors) -> None:
            for operation in process.coordinator.controller().decided.running_operations():
                if operation.paused:
                    await process.admin_requests.run(ResumeOperationRequest(id=operation.id))

        self._ask(resume)

    def _look(self) -> None:
        """Send requests that only read: the controller must be able to answer them in any state."""
        pallet, rng = self._rng.choice(self._world.pallets), self._rng
        duties = list(self._world.checks.duties.duties.values())

        async def look(_: Process, to: ShardDoors) -> None:
            await to.duty_requests.get_pallets(GetPalletsRequest())
            await to.duty_requests.get_duties(GetDutiesRequest(pallet=pallet, unplaced=rng.random() < 0.5))
            await to.duty_requests.get_shards(GetShardsRequest())
            await to.duty_requests.compare_pallet(ComparePalletRequest(pallet=pallet))
            if duties:
                row = rng.choice(duties)
                name = DutyName(pallet=row.pallet, id=row.id)
                await to.duty_requests.explain_duty(ExplainDutyRequest(name=name))

        self._ask(look)

    # The end

    def missing(self, state: State) -> str:
        """Check at the end of a run that pallets are balanced, and that the duties agree with the answers to clients.
        Returns the first error, or "".
        """
        if self._busy:
            return f"the change of {sorted(self._busy)[0]} has no outcome"
        for pallet in self._world.pallets:
            if (row := state.duties.pallets.get(pallet)) is None:
                return f"pallet {pallet} is not created"
            if (row.created_ms, row.version) < self._pallets.get(pallet, (0, 0)):
                raise Violation("an acknowledged change is not lost", f"pallet {pallet} has version {row.version}")
        for name in self._names:
            self._check(state.duties, name)
        for pallet in state.duties.pallets:
            if unbalanced := self._unbalanced(state, pallet):
                return unbalanced
        return ""

    def _check(self, duties: DutyState, name: Name) -> None:
        row = duties.named(*name)
        is_now, expected = row.payload_id if row is not None else NOTHING, set(self._expected[name])
        if name in self._over:
            expected.add(NOTHING)
        if is_now not in expected:
            raise Violation(
                "an acknowledged change is not lost",
                f"{'/'.join(name)} has payload {is_now.hex() or 'none, it is gone'}; after the answers to clients "
                f"it must be one of {sorted(one.hex() for one in expected)}",
            )

    def _unbalanced(self, state: State, pallet: str) -> str:
        row, now_ms = state.duties.pallets[pallet], self._world.unix_ms()
        if held_back(state, row, rooms(state, pallet, now_ms)):
            return ""
        last = next((one for one in reversed(state.operations.values()) if one.rebalance.pallet == pallet), None)
        if last is not None and last.state == OperationState.OPERATION_STATE_CANCELLED:
            return ""  # a person has cancelled the last rebalance, so the duties stay
        # Shards that had equal penalties can have unequal ones later, since penalties fade. So the state counts as
        # balanced if it is balanced by the penalties of some earlier time.
        request, moves = PlanRebalanceRequest(pallet=pallet), 0
        for at_ms in range(now_ms, FIRST_UNIX_MS, -_PENALTIES_FADE_MS):
            moves = len(plan_rebalance(state, request, at_ms).moves)
            if not moves:
                return ""
        return f"pallet {pallet} is out of balance by {moves} moves"


def _payload_of(change: DutyChange) -> bytes:
    kind = change.WhichOneof("change")
    return change.create.payload_id if kind == "create" else change.update.payload_id
