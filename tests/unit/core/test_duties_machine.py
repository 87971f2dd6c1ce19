"""Whatever clients and shards do, and however they fail: no two processes hold an ordinary duty at once, and in the end
each duty that fits has a shard.
"""

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minka.errors import MinkaError
from minka.v1.admin_pb2 import CancelOperationRequest, PauseOperationRequest, ResumeOperationRequest
from minka.v1.duties_pb2 import Balancer, BalancerKind, ShardState
from minka.v1.duty_api_pb2 import ChangeDutiesRequest, DutyChange, DutySpec
from minka.v1.shards_pb2 import FailedDuty, Holding, ShardReport
from minkad.core.duties.control.shard_lives import NoteFlap
from minkad.core.duties.control.trust import HALF_LIFE_MS
from tests.unit.core.duty_world import DutyWorld

NAMES = ("s1", "s2", "s3", "s4")
IDS = tuple(f"d{number}" for number in range(12))
KINDS = [kind for kind in BalancerKind.values() if kind]

names = st.sampled_from(NAMES)
ids = st.sampled_from(IDS)


class Duties(RuleBasedStateMachine):
    """Clients, shards and faults in any order. A process that ends loses its duties before anybody hears of it."""

    @initialize(kind=st.sampled_from(KINDS), warm=st.booleans())
    def begin(self, kind: BalancerKind.ValueType, warm: bool) -> None:
        self.world = DutyWorld()
        self.world.pallet("feeds", balancer=Balancer(kind=kind), warm=warm)
        self.world.create("feeds", IDS[:8], weight=1)
        for name in NAMES[:2]:
            self.world.join(name)
        self.world.settle()

    @rule(
        id_=ids,
        weight=st.integers(0, 5),
        life=st.sampled_from(("", "", "", "stationary", "lazy", "synthetic")),
    )
    def create(self, id_: str, weight: int, life: str) -> None:
        if self.world.duties.named("feeds", id_) is None:
            self.world.create("feeds", [id_], weight=weight, **({life: True} if life else {}))

    @rule(id_=ids)
    def delete(self, id_: str) -> None:
        row = self.world.duties.named("feeds", id_)
        if row is not None and not row.deleting:
            self.world.delete("feeds", id_)

    @rule(id_=ids, weight=st.integers(0, 5))
    def update(self, id_: str, weight: int) -> None:
        row = self.world.duties.named("feeds", id_)
        if row is not None and not row.deleting:
            self.world.do(
                ChangeDutiesRequest(changes=[DutyChange(update=DutySpec(pallet="feeds", id=id_, weight=weight))])
            )

    @rule(id_=ids, name=st.sampled_from((*NAMES, "")))
    def pin(self, id_: str, name: str) -> None:
        with suppress(MinkaError):
            self.world.pin("feeds", id_, name)

    @rule(kind=st.sampled_from(KINDS), warm=st.booleans())
    def change_balancer(self, kind: BalancerKind.ValueType, warm: bool) -> None:
        self.world.change_pallet("feeds", balancer=Balancer(kind=kind), warm=warm)

    @rule(
        name=names,
        capacity=st.sampled_from((None, None, 0, 3, 10)),
        grace_ms=st.sampled_from((0, 0, 5000)),
        version=st.sampled_from(("1", "2")),
    )
    def join(self, name: str, capacity: int | None, grace_ms: int, version: str) -> None:
        if name not in self.world.processes:
            self.world.join(name, capacity=capacity, grace_ms=grace_ms, version=version)

    @rule(name=names)
    def kill(self, name: str) -> None:
        if name in self.world.processes:
            self.world.kill(name)

    @rule(name=names)
    def leave(self, name: str) -> None:
        if name in self.world.processes:
            self.world.leave(name)

    @rule(name=names)
    def flap(self, name: str) -> None:
        if name in self.world.processes:
            self.world.do(NoteFlap(name, self.world.processes[name].incarnation))

    @rule(name=names)
    def work(self, name: str) -> None:
        if name in self.world.processes:
            self.world.work(self.world.processes[name])

    @rule(name=names, place=st.integers(0, 11), fails=st.booleans())
    def fail_or_finish(self, name: str, place: int, fails: bool) -> None:
        process = self.world.processes.get(name)
        if process is None or not process.held:
            return
        number = sorted(process.held)[place % len(process.held)]
        row = self.world.duties.duties.get(number)
        if row is None or not (fails or row.lazy):
            return
        (self.world.fail_to_attach if fails else self.world.finish)(name, row.id)
        process.held.pop(number, None)

    @rule(name=names, place=st.integers(0, 11))
    def say_something_old(self, name: str, place: int) -> None:
        """Send a report with an epoch before the present one. It must change nothing."""
        process = self.world.processes.get(name)
        if process is not None and process.held:
            number = sorted(process.held)[place % len(process.held)]
            old = Holding(duty=number, epoch=process.held[number] - 1)
            report = ShardReport(released=[old], finished=[old], failed=[FailedDuty(holding=old)])
            before = list(self.world.duties.assignments(number))
            self.world.report(process, report)
            assert list(self.world.duties.assignments(number)) == before

    @rule()
    def follow(self) -> None:
        self.world.follow()

    @rule(milliseconds=st.sampled_from((100, 1000, 6000, HALF_LIFE_MS)))
    def pass_time(self, milliseconds: int) -> None:
        self.world.now_ms += milliseconds

    @rule()
    def rebalance(self) -> None:
        with suppress(MinkaError):
            self.world.rebalance("feeds")

    @precondition(lambda self: self.world.state.running_operations())
    @rule(cancels=st.booleans(), paused=st.booleans())
    def pause_or_cancel(self, cancels: bool, paused: bool) -> None:
        operation = self.world.state.running_operations()[0]
        if cancels:
            self.world.do(CancelOperationRequest(id=operation.id, requested_by="", reason=""))
        else:
            self.world.do(PauseOperationRequest(id=operation.id))

    @invariant()
    def tables(self) -> None:
        if hasattr(self, "world"):
            self.world.check_held_once()
            self.world.check_tables()

    def teardown(self) -> None:
        """Once nothing fails, each duty that fits has its place."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.change_pallet("feeds", balancer=Balancer(kind=BalancerKind.BALANCER_KIND_ROUND_ROBIN))
        for operation in world.state.running_operations():
            world.do(ResumeOperationRequest(id=operation.id))
        for number in [number for number in world.duties.pinned if number not in world.duties.deleting]:
            world.pin("feeds", world.duties.duties[number].id, "")
        world.wait(10 * HALF_LIFE_MS)
        if "last" not in world.processes:
            world.join("last")
        world.wait(10 * HALF_LIFE_MS)
        for row in list(world.duties.duties.values()):
            assert not row.deleting, row
            if row.synthetic:
                continue
            holder = world.duties.holder(row.number)
            assert holder is not None, row
            assert world.duties.of_duty[row.number] == (holder,), row
            assert world.processes[holder.shard].held.get(row.number) == holder.epoch, row
        for shard in world.duties.shards.values():
            live = (ShardState.SHARD_STATE_LIVE, ShardState.SHARD_STATE_GONE)
            assert shard.state in live, shard
        assert not world.state.running_operations()
        world.check_tables()


TestDuties = Duties.TestCase
TestDuties.settings = settings(max_examples=150, stateful_step_count=40)
