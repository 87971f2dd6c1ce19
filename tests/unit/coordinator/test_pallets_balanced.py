"""The active controller's automatic balancing of duties."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from minka.v1.cluster_pb2 import Node, NodeState
from minka.v1.duty_api_pb2 import ChangePalletsRequest, PalletChange
from minkad.core.controller.decision import Command
from minkad.core.duties.control.duty_rebalance import BalancePallet
from minkad.core.state import State
from minkad.duties.control import shard_control
from minkad.duties.control.shard_control import ShardControl, ShardSettings
from tests.unit.core.duty_world import DutyWorld


class Controller:
    """A controller with this state. It puts the commands of operations into `begun` instead of beginning the
    operations.
    """

    def __init__(self, state: State) -> None:
        self.decided = state
        self.confirmed_at = 0.0
        self.begun: asyncio.Queue[Command] = asyncio.Queue()

    def fail(self, error: BaseException, /) -> None:
        """Ignore the error."""

    def suspects_itself(self) -> bool:
        return False

    async def run(self, command: Command) -> Any:
        self.begun.put_nowait(command)

    async def run_when_due(
        self,
        command: Callable[[], Command | None],
        decided: Callable[[asyncio.Future[None] | None], None] = lambda _: None,
    ) -> Any:
        raise AssertionError(command())


async def at_once(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


def shard_control_of(controller: Controller) -> ShardControl:
    """The shard control of this controller."""
    now = asyncio.get_running_loop().time
    return ShardControl(controller, ShardSettings(), unconfirmed_since=0.0, tick=0.05, now=now, in_thread=at_once)


async def test_a_pallet_is_balanced_again_when_the_drain_of_a_node_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of a duty or a shard changes. Only the node's row shows that its shard may have duties again."""
    monkeypatch.setattr(shard_control, "BALANCE_INTERVAL_S", 0.001)
    monkeypatch.setattr(shard_control, "SETTLED_S", 0.002)
    world = DutyWorld()
    world.pallet("feeds")
    world.state.nodes["athens"] = Node(id="athens", state=NodeState.NODE_STATE_DRAINING, emptied=True)
    world.join("s1", capacity=100)
    world.join("s2", capacity=100, node="athens")
    world.create("feeds", [f"d{number}" for number in range(10)])
    world.settle()
    assert world.counts() == {"s1": 10, "s2": 0}
    controller = Controller(world.state)
    control = shard_control_of(controller)
    async with asyncio.timeout(10):
        while "feeds" not in control._balanced:  # noqa: ASYNC110 - no event: the balancer has nothing to move
            await asyncio.sleep(0.001)
        assert controller.begun.empty()
        world.state.nodes["athens"] = Node(id="athens", state=NodeState.NODE_STATE_LIVE)
        command = await controller.begun.get()
    control.close()
    assert isinstance(command, BalancePallet)
    assert {move.target for move in command.plan.moves} == {"s2"}


async def test_the_balancing_of_a_deleted_pallet_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pallet that is later created under the same name is balanced like a new one."""
    monkeypatch.setattr(shard_control, "BALANCE_INTERVAL_S", 0.001)
    monkeypatch.setattr(shard_control, "SETTLED_S", 0.002)
    world = DutyWorld()
    world.pallet("feeds")
    world.join("s1")
    control = shard_control_of(Controller(world.state))
    async with asyncio.timeout(10):
        while "feeds" not in control._balanced:  # noqa: ASYNC110 - no event: the balancer has nothing to move
            await asyncio.sleep(0.001)
        before = control._balanced["feeds"]
        world.do(ChangePalletsRequest(changes=[PalletChange(delete="feeds")]))
        while "feeds" in control._balanced or "feeds" in control._seen:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.001)
        world.pallet("feeds")
        while "feeds" not in control._balanced:  # noqa: ASYNC110 - no event: the balancer has nothing to move
            await asyncio.sleep(0.001)
    control.close()
    assert control._balanced["feeds"] != before
