"""The node's side of sessions: which processes it accepts, and how sessions end."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minka.errors import Code, MinkaError
from minka.v1.duties_pb2 import Pallet, PalletCapacity, Shard, ShardState
from minka.v1.shards_pb2 import Holding, ShardHello, ShardInstruction, ShardLeave, ShardMessage, ShardReport
from minkad.core.state import State
from minkad.duties.node.shard_sessions import SessionSettings, ShardSessions
from minkad.process.memory import Memory
from tests.own_table import Table


class Relay:
    """A relay that notes requests to register."""

    def __init__(self) -> None:
        self.asked = False

    async def register(self, shard: Shard) -> int:
        """Note the request, and refuse it, which ends the session."""
        self.asked = True
        raise MinkaError(Code.SHARD_NAME_TAKEN, "the name is taken")


def sessions_with(relay: object, state: State, silence: float = 3.0) -> ShardSessions:
    return ShardSessions(
        cast(Any, relay),
        cast(Any, None),
        SessionSettings(0.5, silence),
        node_id="athens",
        table=Table(state),
        raft=cast(Any, SimpleNamespace(settled_index=7)),
        member=cast(Any, SimpleNamespace(has_clearance=lambda: True)),
    )


async def begin(row: Shard | None, holdings: list[Holding]) -> Code:
    """Let process p1 of shard s begin a session. The process says that it holds these duties, and the node's table has
    this row of the shard. Returns the code of the refusal.
    """
    state, relay = State(), Relay()
    if row is not None:
        state.duties.put_shard(row)

    async def messages() -> AsyncIterator[ShardMessage]:
        shard = Shard(name="s", incarnation="p1")
        yield ShardMessage(hello=ShardHello(shard=shard, known_index=7, holdings=holdings))

    with pytest.raises(MinkaError) as caught:
        await sessions_with(relay, state).serve(messages(), cast(Any, None), cast(Any, None))
    assert relay.asked == (caught.value.code is Code.SHARD_NAME_TAKEN)
    return caught.value.code


HAS = [Holding(duty=1, epoch=4)]
GONE = Shard(name="s", incarnation="p1", state=ShardState.SHARD_STATE_GONE)
ANOTHER = Shard(name="s", incarnation="p0", state=ShardState.SHARD_STATE_LIVE)


async def test_a_process_with_duties_that_is_no_longer_registered_is_fenced() -> None:
    assert await begin(None, HAS) is Code.SHARD_FENCED
    assert await begin(ANOTHER, HAS) is Code.SHARD_FENCED


@pytest.mark.parametrize(("row", "holdings"), [(None, []), (ANOTHER, []), (GONE, HAS), (GONE, [])])
async def test_the_controller_decides_about_other_processes(row: Shard | None, holdings: list[Holding]) -> None:
    assert await begin(row, holdings) is Code.SHARD_NAME_TAKEN


async def test_a_session_without_a_hello_is_ended() -> None:
    async def messages() -> AsyncIterator[ShardMessage]:
        await asyncio.Event().wait()
        yield ShardMessage()

    sessions = sessions_with(Relay(), State(), silence=0.01)
    with pytest.raises(MinkaError, match="DEADLINE_EXCEEDED: no hello within"):
        await asyncio.wait_for(sessions.serve(messages(), cast(Any, None), cast(Any, None)), 10)


async def test_a_session_that_is_cancelled_while_its_shard_leaves_ends_quietly() -> None:
    """The session drops the work that it has not begun, so that Python gives no warning about this work."""
    state = State()
    shard = Shard(name="s", incarnation="p1", state=ShardState.SHARD_STATE_LIVE)
    state.duties.put_shard(shard)

    async def messages() -> AsyncIterator[ShardMessage]:
        yield ShardMessage(hello=ShardHello(shard=shard, known_index=7))
        serving.cancel()
        yield ShardMessage(leave=ShardLeave())
        await asyncio.Event().wait()

    async def write(_: ShardInstruction) -> None: ...

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sessions = sessions_with(Relay(), state)
        serving = asyncio.create_task(sessions.serve(messages(), write, Memory(1 << 20, clock=lambda: 0.0)))
        with pytest.raises(asyncio.CancelledError):
            await serving
        await asyncio.sleep(0)  # let the session's tasks end
        gc.collect()
    assert not caught


async def test_a_shard_gets_a_goodbye_if_its_last_report_is_refused_because_the_shard_is_gone() -> None:
    """A shard that stops gracefully sends its last report. The controller has just recorded that the shard has ended,
    and refuses the report.
    """
    state = State()
    shard = Shard(name="s", incarnation="p1", state=ShardState.SHARD_STATE_LIVE)
    state.duties.put_shard(shard)
    told = list[ShardInstruction]()
    said_goodbye = asyncio.Event()
    gone = Shard(name="s", incarnation="p1", state=ShardState.SHARD_STATE_GONE)

    class Leaving(Relay):
        async def leave(self, shard: Shard) -> None: ...

        async def report(self, shard: Shard, report: ShardReport) -> int:
            sessions.changed(state.duties.put_shard(gone))
            raise MinkaError(Code.SHARD_FENCED, "the shard is gone")

    async def messages() -> AsyncIterator[ShardMessage]:
        yield ShardMessage(hello=ShardHello(shard=shard, known_index=7))
        yield ShardMessage(leave=ShardLeave())
        yield ShardMessage(report=ShardReport(sequence=1))
        await said_goodbye.wait()

    async def write(instruction: ShardInstruction) -> None:
        told.append(instruction)
        if instruction.HasField("goodbye"):
            said_goodbye.set()

    sessions = sessions_with(Leaving(), state)
    with pytest.raises(MinkaError, match="SHUTTING_DOWN"):
        await asyncio.wait_for(sessions.serve(messages(), write, Memory(1 << 20, clock=lambda: 0.0)), 10)
    assert told[-1].HasField("goodbye")


async def test_a_shard_is_told_which_of_its_pallets_do_not_exist() -> None:
    """The node tells the shard at the beginning of the session, and again when the shard takes other pallets."""
    state = State()
    state.duties.put_pallet(Pallet(id="feeds"))
    shard = Shard(name="s", incarnation="p1", state=ShardState.SHARD_STATE_LIVE)
    shard.pallets.extend([PalletCapacity(pallet="feeds"), PalletCapacity(pallet="maps")])
    state.duties.put_shard(shard)
    told: list[list[str]] = []
    said_twice = asyncio.Event()

    class Registering(Relay):
        async def register(self, shard: Shard) -> int:
            return 7

    async def messages() -> AsyncIterator[ShardMessage]:
        yield ShardMessage(hello=ShardHello(shard=shard, known_index=7))
        other = Shard(name="s", incarnation="p1", pallets=[PalletCapacity(pallet="post")])
        yield ShardMessage(hello=ShardHello(shard=other, known_index=7))
        await said_twice.wait()

    async def write(instruction: ShardInstruction) -> None:
        if instruction.HasField("welcome"):
            told.append(list(instruction.welcome.unknown_pallets))
        if len(told) == 2:
            said_twice.set()

    serving = sessions_with(Registering(), state).serve(messages(), write, Memory(1 << 20, clock=lambda: 0.0))
    with pytest.raises(MinkaError, match="SHUTTING_DOWN"):
        await asyncio.wait_for(serving, 10)
    assert told == [["maps"], ["post"]]
