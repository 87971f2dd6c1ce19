"""The shards' clearances and the balance of their duties, while this node is the active controller."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import Plan
from minka.v1.duties_pb2 import Shard
from minka.v1.duty_api_pb2 import PlanRebalanceRequest
from minka.v1.shards_pb2 import ShardHeartbeatsRequest, ShardHeartbeatsResponse
from minkad.core.clearance import CLOCK_RATIO
from minkad.core.controller.decision import Command
from minkad.core.controller.failure_detector import FailureDetector
from minkad.core.duties.control.distribution import Distributor
from minkad.core.duties.control.duty_rebalance import BalancePallet, held_back, plan_rebalance
from minkad.core.duties.control.rooms import rooms
from minkad.core.duties.control.shard_lives import FailShards, NoteFlap, RegisterShard, is_registered
from minkad.core.state import State
from minkad.process import tasks
from minkad.process.clock import unix_ms
from minkad.process.turns import InThread

log: Final = logging.getLogger(__name__)

BALANCE_INTERVAL_S: Final = 0.5
SETTLED_S: Final = 1.0  # a pallet is balanced after this time without changes: shards come and go together
FLAP_SHARE: Final = 0.8  # of the clearance; a heartbeat after a longer silence was nearly too late
CHANCE_SHARE: Final = 2 / 3  # of the clearance: the time in which a shard finds a new active controller


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How long shards hold their clearance, and when they are failed; in seconds."""

    clearance: float = 3.0
    failure_timeout: float = 3.6


class Controller(Protocol):
    """The parts of the active controller that this module needs."""

    @property
    def decided(self) -> State:
        """The table after all proposals are committed."""

    @property
    def confirmed_at(self) -> float:
        """The time when a quorum last confirmed that this node leads."""

    def fail(self, error: BaseException, /) -> None:
        """A task has ended with a bug."""

    def suspects_itself(self) -> bool:
        """True if much of the cluster is silent, so that the fault may be here."""

    async def run(self, command: Command) -> Any:
        """Decide and record; returns the command's answer."""

    async def run_when_due(
        self,
        command: Callable[[], Command | None],
        decided: Callable[[asyncio.Future[None] | None], None] = ...,
    ) -> Any:
        """Like `run`, but calls `command` in its turn; None: there is no command. `decided` is called in that turn."""


class ShardControl:
    """Times are seconds of the active controller's monotonic clock."""

    def __init__(
        self,
        controller: Controller,
        settings: ShardSettings,
        *,
        unconfirmed_since: float,
        tick: float,
        now: Callable[[], float],
        in_thread: InThread,
    ) -> None:
        self.distributor = Distributor()
        self.settings = settings
        self._controller = controller
        self._now = now
        self.in_thread = in_thread
        # `patience` is 1, since only silent nodes make this node suspect itself, and not silent shards. When all grants
        # of former controllers have ended, a live shard that wasn't heard here has released all of its duties.
        self.detector = FailureDetector(
            settings.failure_timeout,
            now(),
            unconfirmed_since + settings.clearance * CLOCK_RATIO,
            tick,
            patience=1,
            chance=settings.clearance * CHANCE_SHARE,
        )
        self._registering = Counter[str]()  # by name: the processes whose registration isn't recorded yet
        self._judging: asyncio.Task[None] | None = None
        self._failing: frozenset[str] = frozenset()  # shards whose failure is being recorded
        self._flaps: set[asyncio.Task[None]] = set()
        self._balanced: dict[str, object] = {}  # by pallet: the `_counted` value when it was balanced last
        self._seen: dict[str, tuple[object, float]] = {}  # by pallet: the latest `_counted` value, and since when
        self._balancing = tasks.start(self._keep_balanced(), "balancing duties", controller.fail)

    def close(self) -> None:
        """This node is no longer the leader."""
        self._balancing.cancel()
        for task in (self._judging, *self._flaps):
            if task is not None:
                task.cancel()

    # Clearances

    async def register(self, shard: Shard) -> None:
        """Register a shard's process. Raises SHARD_NAME_TAKEN while another may hold the shard's clearance."""

        def command() -> RegisterShard:
            return RegisterShard(shard, self.is_alive(shard.name))

        self._registering[shard.name] += 1
        try:
            await self._controller.run_when_due(command, lambda _: self.heard(shard.name))
            self.heard(shard.name)
        finally:
            self._registering[shard.name] -= 1
            self._registering += Counter()  # drops the names with a count of 0

    def heard(self, shard: str) -> None:
        """Note that the shard's process was heard from."""
        self.detector.heard(shard, self._now())

    def is_alive(self, shard: str) -> bool:
        """True if the shard may hold a clearance."""
        return self.detector.is_alive(shard, self._now())

    def silence(self, shard: str) -> float:
        """Seconds since the shard was last heard from."""
        return self.detector.silence(shard, self._now())

    def heartbeats(self, request: ShardHeartbeatsRequest) -> ShardHeartbeatsResponse:
        """Renew clearances. A clearance ends at most `settings.clearance` after a quorum last confirmed that this node
        leads, so no clearance outlasts this term by more.
        """
        now, shards = self._now(), self._controller.decided.duties.shards
        refused = []
        for sign in request.signs:
            row = shards.get(sign.shard)
            if (
                row is None
                or not is_registered(row)
                or row.incarnation != sign.incarnation
                or row.name in self._failing
            ):
                refused.append(sign.shard)
                continue
            if self.detector.silence(sign.shard, now) > FLAP_SHARE * self.settings.clearance:
                self._note_flap(row)
            self.detector.heard(sign.shard, now)
        remaining = self._controller.confirmed_at + self.settings.clearance - now
        return ShardHeartbeatsResponse(clearance_ms=int(max(0.0, remaining) * 1000), refused=refused)

    def _note_flap(self, row: Shard) -> None:
        task = tasks.start(self._submit(NoteFlap(row.name, row.incarnation)), "flap", self._controller.fail)
        self._flaps.add(task)
        task.add_done_callback(self._flaps.discard)

    async def _submit(self, command: Command) -> None:
        try:
            await self._controller.run(command)
        except MinkaError as error:
            log.info("a command was not recorded", extra={"command": type(command).__name__, "reason": str(error)})

    def turn(self) -> None:
        """Note that the loop runs; call this each tick."""
        self.detector.turn(self._now())

    def judge(self) -> None:
        """A quorum has just confirmed that this node leads: fail the shards that were silent until then."""
        if self._silent() and (self._judging is None or self._judging.done()):
            self._judging = tasks.start(self._fail_silent(), "failing shards", self._controller.fail)

    def _silent(self) -> list[str]:
        if self._controller.suspects_itself():
            return []
        shards = self._controller.decided.duties.shards.values()
        others = [shard.name for shard in shards if is_registered(shard) and shard.name not in self._registering]
        return self.detector.silent(others, self._controller.confirmed_at)

    async def _fail_silent(self) -> None:
        try:
            await self._controller.run_when_due(self._verdict)
        except MinkaError as error:
            log.info("silent shards were not failed", extra={"reason": str(error)})
        finally:
            self._failing = frozenset()

    def _verdict(self) -> FailShards | None:
        """Fail the shards that are silent now, in the command's turn: others may have been heard while it waited. From
        now on these shards get no clearance, since recording may take several turns of the loop.
        """
        now = self._now()
        reasons = {name: f"no heartbeat for {self.detector.silence(name, now):.1f} s" for name in self._silent()}
        for name, reason in reasons.items():
            log.warning("shard failed", extra={"shard": name, "reason": reason})
        self._failing = frozenset(reasons)
        unheard = frozenset(name for name in reasons if not self.detector.has_heard(name))
        return FailShards(reasons, unheard) if reasons else None

    # Balance

    async def _keep_balanced(self) -> None:
        while True:
            await asyncio.sleep(BALANCE_INTERVAL_S)
            for pallet in self._due():
                counted = self._counted(pallet, self._emptied())
                try:
                    await self._balance(pallet)
                except MinkaError as error:
                    log.info("a pallet is not balanced now", extra={"pallet": pallet, "reason": str(error)})
                    continue
                self._balanced[pallet] = counted

    def _counted(self, pallet: str, emptied: frozenset[str]) -> object:
        """A value that changes with everything that may worsen the pallet's balance."""
        return self._controller.decided.duties.balance.get(pallet, 0), emptied

    def _emptied(self) -> frozenset[str]:
        """The nodes whose shards get no duties."""
        return frozenset(node.id for node in self._controller.decided.nodes.values() if node.emptied)

    def _due(self) -> list[str]:
        state, now = self._controller.decided, self._now()
        moving = {operation.rebalance.pallet for operation in state.running_operations()}
        due, emptied = list[str](), self._emptied()
        for noted in (self._balanced, self._seen):
            for pallet in noted.keys() - state.duties.pallets.keys():
                del noted[pallet]
        for pallet in state.duties.pallets:
            count = self._counted(pallet, emptied)
            seen, since = self._seen.get(pallet, (None, now))
            if seen != count:
                self._seen[pallet] = count, now
                continue
            is_new = count != self._balanced.get(pallet)
            if is_new and now - since >= SETTLED_S and pallet not in moving and not self._waits(state, pallet):
                due.append(pallet)
        return due

    def _waits(self, state: State, pallet: str) -> bool:
        """True if duties of the pallet have yet to be placed, or are held back: they come before balancing."""
        if self.distributor.is_waited_for(state, pallet):
            return True
        return bool(held_back(state, state.duties.pallets[pallet], rooms(state, pallet, unix_ms())))

    async def _balance(self, pallet: str) -> None:
        plan = await self.plan(PlanRebalanceRequest(pallet=pallet, reason="to balance the pallet"))
        if plan.moves:
            operation = await self._controller.run(BalancePallet(plan))
            if operation is not None:
                log.info("balancing a pallet", extra={"pallet": pallet, "moves": len(plan.moves)})

    async def plan(self, request: PlanRebalanceRequest) -> Plan:
        """The moves of the pallet's balancer. Raises UNKNOWN_PALLET."""
        state = self.for_planning()
        if request.pallet not in state.duties.pallets:
            raise MinkaError(Code.UNKNOWN_PALLET, f"there is no pallet {request.pallet}", pallet=request.pallet)
        plan: Plan = await self.in_thread(plan_rebalance, state, request, unix_ms())
        return plan

    def for_planning(self) -> State:
        """A copy of the parts of the table that planners read, for a thread."""
        decided = self._controller.decided
        return State(
            decided.cluster,
            decided.version,
            dict(decided.nodes),
            duties=decided.duties.copy(),
            moving=dict(decided.moving),
        )
