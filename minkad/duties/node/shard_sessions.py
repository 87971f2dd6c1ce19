"""The sessions of the shards that are connected to this node. The node tells each shard its rows, from this node's copy
of the table, and passes the shard's messages on to the active controller.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import NodeState
from minka.v1.duties_pb2 import Shard
from minka.v1.shards_pb2 import (
    Holding,
    ShardGoodbye,
    ShardGrant,
    ShardHello,
    ShardInstruction,
    ShardMessage,
    ShardRecorded,
    ShardReport,
    ShardWelcome,
)
from minkad.coordinator.member import Member
from minkad.coordinator.raft_driver import RaftDriver
from minkad.core.duties.control.shard_lives import is_registered
from minkad.core.state import NotifyShard, OwnTable
from minkad.duties.node.payload_reads import PayloadReads, Payloads
from minkad.duties.node.relay import Relay
from minkad.duties.node.telling import MAX_BYTES, Telling
from minkad.process import tasks
from minkad.process.logs import Seldom
from minkad.process.memory import Memory
from minkad.process.turns import turn

log: Final = logging.getLogger(__name__)

REGISTER_S: Final = 5.0  # the controller's time to record a shard; then the shard asks another node
CATCH_UP_S: Final = 2.0  # this node's time to apply the entries that the shard already knows
_LOOK_S: Final = 0.1
_POLL_S: Final = 0.005  # between two looks at the applied index
_RETRY_S: Final = (0.1, 2.0)  # between two tries to read payloads: the first pause and the longest
_READ_S: Final = 5.0
_FIRST_GATHER_S: Final = 0.0005  # times the shards to tell (100: 50 ms): the wait for decisions of the same moment
_OFTEN_S: Final = 0.5  # a shard that was told of duties within this time is told often, and waits longer:
_GATHER_S: Final = 0.001  # times the shards that are told often (100: 0.1 s),
_LONGEST_GATHER_S: Final = 0.15  # but at most this
_MAX_REPORTS: Final = 8  # reports of one session that wait, besides the one under way


Write = Callable[[ShardInstruction], Awaitable[None]]
"""Returns when gRPC has sent the message, as fast as the shard takes messages."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The interval of shards' heartbeats, and the silence after which a session ends; in seconds."""

    heartbeat_interval: float
    silence: float


class ShardSessions:
    """All sessions of the node. Methods are for the loop's thread."""

    def __init__(
        self,
        relay: Relay,
        payloads: Payloads,
        settings: SessionSettings,
        *,
        node_id: str,
        table: OwnTable,
        raft: RaftDriver,
        member: Member,
    ) -> None:
        self.relay: Final = relay
        self.payloads: Final = payloads
        self.reads: Final = PayloadReads(payloads)
        self.settings: Final = settings
        self.table: Final = table
        self.raft: Final = raft
        self.seldom: Final = Seldom(log)
        self._node_id = node_id
        self._member = member
        self._sessions: dict[str, Session] = {}  # by shard: the newest

    def __len__(self) -> int:
        """The number of connected shards."""
        return len(self._sessions)

    async def serve(self, messages: AsyncIterator[ShardMessage], write: Write, memory: Memory) -> None:
        """Serve a session until the shard ends it. Messages on their way to the shard count in `memory`. Raises
        MinkaError, which tells the shard how to go on, such as at another node.
        """
        hello = await self._hello(messages)
        self._check_clearance()
        await self.settled(hello.known_index)
        self._check_known(hello)
        await self.register(hello.shard)
        session = Session(self, hello.shard, hello.holdings, memory)
        if (former := self._sessions.get(hello.shard.name)) is not None:
            former.end(MinkaError(Code.SHARD_NAME_TAKEN, "the shard has begun another session"))
        self._sessions[hello.shard.name] = session
        try:
            await session.run(messages, write, self.welcome(hello.shard))
        finally:
            session.close()
            if self._sessions.get(hello.shard.name) is session:
                del self._sessions[hello.shard.name]

    async def _hello(self, messages: AsyncIterator[ShardMessage]) -> ShardHello:
        try:
            async with asyncio.timeout(self.settings.silence):
                first = await anext(messages, None)
        except TimeoutError:
            raise MinkaError(Code.DEADLINE_EXCEEDED, f"no hello within {self.settings.silence:g} s") from None
        if first is None or not first.HasField("hello"):
            raise MinkaError(Code.INVALID_ARGUMENT, "a session begins with a hello")
        return first.hello

    def _check_clearance(self) -> None:
        if not self._member.has_clearance():
            raise MinkaError(Code.NO_CLEARANCE, "this node is not in touch with the active controller")

    def _check_known(self, hello: ShardHello) -> None:
        """A process that has duties was registered when it got them. If the rows no longer have the process, it counts
        as dead, and other shards may have its duties. Raises SHARD_FENCED.
        """
        row = self.table.state.duties.shards.get(hello.shard.name)
        if hello.holdings and (row is None or row.incarnation != hello.shard.incarnation):
            raise MinkaError(Code.SHARD_FENCED, f"shard {hello.shard.name}: the cluster doesn't know this process")

    async def settled(self, index: int) -> None:
        """Wait until this node has applied the log up to `index`. Raises NO_CLEARANCE if the node lags too much."""
        try:
            async with asyncio.timeout(CATCH_UP_S):
                while self.raft.settled_index < index:  # noqa: ASYNC110 - applying sets no event
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            text = f"this node has applied {self.raft.settled_index}, and the shard knows {index}"
            raise MinkaError(Code.NO_CLEARANCE, text) from None

    async def register(self, shard: Shard) -> None:
        """Register, and wait until the process is in this node's rows. Raises MinkaError."""
        row = self.table.state.duties.shards.get(shard.name)
        if row is not None and is_registered(row) and _says_the_same(row, shard):
            return
        try:
            async with asyncio.timeout(REGISTER_S):
                index = await self.relay.register(shard)
        except TimeoutError:
            raise MinkaError(Code.NO_CONTROLLER, "no active controller registered the shard in time") from None
        await self.settled(index)

    def welcome(self, shard: Shard) -> ShardInstruction:
        """The answer to a hello of this shard."""
        state = self.table.state
        live = [node.address for node in state.nodes.values() if node.state == NodeState.NODE_STATE_LIVE]
        welcome = ShardWelcome(
            cluster_id=state.cluster.id,
            heartbeat_interval_ms=int(self.settings.heartbeat_interval * 1000),
            node=self._node_id,
            endpoints=live,
            unknown_pallets=[one.pallet for one in shard.pallets if one.pallet not in state.duties.pallets],
        )
        return ShardInstruction(index=self.raft.settled_index, welcome=welcome)

    def gather(self, session: "Session") -> float:
        """The seconds for which news for the shard waits for more news, since messages are expensive."""
        since = time.monotonic() - _OFTEN_S
        if session.told_at <= since:
            return _FIRST_GATHER_S * sum(one.is_to_tell for one in self._sessions.values())
        return min(_LONGEST_GATHER_S, _GATHER_S * sum(one.told_at > since for one in self._sessions.values()))

    # What happens at this node

    def changed(self, notices: Sequence[NotifyShard]) -> None:
        """Rows of shards have changed."""
        for notice in notices:
            if (session := self._sessions.get(notice.shard)) is not None:
                session.changed(notice.duties)

    def restored(self) -> None:
        """Note that any row may have changed."""
        for session in list(self._sessions.values()):
            session.everything_changed()

    async def run(self) -> None:
        """Until cancelled, end useless sessions: all if this node has no clearance, and those of silent shards."""
        in_touch_at = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            if self._member.has_clearance():
                in_touch_at = now
            elif now - in_touch_at > self.settings.heartbeat_interval:  # not at once: a move of shards costs, too
                self.end_all("this node is not in touch with the active controller")
                continue
            for session in list(self._sessions.values()):
                if now - session.heard_at > self.settings.silence:
                    session.end(MinkaError(Code.NO_CLEARANCE, "the shard is silent"))

    def end_all(self, reason: str) -> None:
        """End all sessions; the shards go on at other nodes."""
        for session in list(self._sessions.values()):
            session.end(MinkaError(Code.NO_CLEARANCE, reason))


def _says_the_same(row: Shard, said: Shard) -> bool:
    fields = ("incarnation", "node", "version", "grace_ms")
    same = all(getattr(row, name) == getattr(said, name) for name in fields)
    return same and list(row.pallets) == list(said.pallets)


class Session:
    """One shard's session. Messages wait in order; a clearance overtakes them."""

    def __init__(self, sessions: ShardSessions, shard: Shard, holdings: Iterable[Holding], memory: Memory) -> None:
        """Raises OVERLOADED if there are too many sessions."""
        self.heard_at = time.monotonic()  # when the shard's last message came
        self.told_at = float("-inf")  # when the shard was last told of duties with their payloads
        self._sessions = sessions
        self._shard = shard
        self._share = memory.share(self._revoked)
        self._telling = Telling(shard.name, holdings)
        self._telling.everything(sessions.table.state.duties)
        self._out: deque[ShardInstruction] = deque()  # messages to write
        self._out_bytes = 0  # of these, and of the message that is being written
        self._grant: ShardGrant | None = None  # the newest clearance, until it is written
        self._something = asyncio.Event()  # set when there is something to write, or the session ends
        self._changed = asyncio.Event()
        self._waiting = asyncio.Event()  # set when duties wait for their payloads
        self._taken = asyncio.Event()  # set when the shard has taken the last message
        self._reports: deque[ShardReport] = deque()  # for the controller, in order
        self._reported = asyncio.Event()
        self._is_leaving = False  # the shard has announced its end
        self._end: MinkaError | None = None  # the reason why the session ends
        self._tasks: list[asyncio.Task[None]] = []
        self._serving: asyncio.Task[object] | None = None  # the task in `run`, which writes
        self.is_open = True

    @property
    def is_to_tell(self) -> bool:
        """True if the shard must be told of duties with their payloads."""
        return self._waiting.is_set()

    # Both directions

    async def run(self, messages: AsyncIterator[ShardMessage], write: Write, welcome: ShardInstruction) -> None:
        """Raises the MinkaError with which the session ends."""
        self._serving = asyncio.current_task()
        await write(welcome)
        self._begin(lambda: self._read(messages))
        for work in (self._release, self._hand_over, self._report):
            self._begin(work)
        self._changed.set()
        try:
            while self._end is None:
                await self._something.wait()
                self._something.clear()
                while (instruction := self._next()) is not None:
                    await self._write(write, instruction)
        except asyncio.CancelledError:
            if self._end is None or self._serving is None:
                raise
            self._serving.uncancel()
        finally:
            self._serving = None
        raise self._end

    async def _write(self, write: Write, instruction: ShardInstruction) -> None:
        self._share.sending_since = time.monotonic()
        await write(instruction)
        self._share.sending_since = None
        if not instruction.HasField("grant"):
            size = instruction.ByteSize()
            self._out_bytes -= size
            self._share.give(size)
            self._taken.set()

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(tasks.start(self._to_the_end(work), f"session of {self._shard.name}", self._broke))

    async def _to_the_end(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except MinkaError as error:
            self.end(error)

    def _broke(self, error: BaseException) -> None:
        self.end(MinkaError(Code.INTERNAL, f"{type(error).__name__}: {error}"))

    def end(self, error: MinkaError) -> None:
        """End the session, and tell the shard why, if it listens."""
        if self._end is None:
            self._end = error
            self._something.set()
            if self._share.sending_since is not None and self._serving is not None:
                self._serving.cancel()  # the task waits for a shard that takes no messages

    def _revoked(self) -> None:
        self.end(MinkaError(Code.OVERLOADED, "the shard doesn't take what it is told, and others wait for memory"))

    def close(self) -> None:
        """End the session."""
        self.is_open = False
        self._share.close()
        for task in self._tasks:
            task.cancel()

    def _next(self) -> ShardInstruction | None:
        if self._end is not None:
            return None
        if self._grant is not None:
            grant, self._grant = self._grant, None
            return ShardInstruction(grant=grant)
        return self._out.popleft() if self._out else None

    def _say(self, instruction: ShardInstruction) -> None:
        instruction.index = self._sessions.raft.settled_index
        self._out.append(instruction)
        size = instruction.ByteSize()
        self._out_bytes += size
        self._share.take(size)
        self._something.set()

    # From the shard

    async def _read(self, messages: AsyncIterator[ShardMessage]) -> None:
        async for message in messages:
            self.heard_at = time.monotonic()
            match message.WhichOneof("message"):
                case "heartbeat":
                    self._sessions.relay.beat(self._shard, message.heartbeat.sequence, self)
                case "report":
                    if len(self._reports) == _MAX_REPORTS:
                        raise MinkaError(Code.INVALID_ARGUMENT, "a shard waits until its report is recorded")
                    self._telling.given_back(message.report)
                    self._reports.append(message.report)
                    self._reported.set()
                case "leave" if not self._is_leaving:
                    self._is_leaving = True
                    self._begin(self._leave)
                case "hello":
                    await self._hello_again(message.hello.shard)
        self.end(MinkaError(Code.SHUTTING_DOWN, "the shard has ended the session"))

    async def _hello_again(self, shard: Shard) -> None:
        if (shard.name, shard.incarnation) != (self._shard.name, self._shard.incarnation):
            raise MinkaError(Code.INVALID_ARGUMENT, "a session belongs to one process")
        self._shard = shard
        await self._sessions.register(shard)
        self._say(self._sessions.welcome(shard))

    async def _leave(self) -> None:
        await self._sessions.relay.leave(self._shard)
        self._row_changed()

    async def _report(self) -> None:
        while True:
            await self._reported.wait()
            self._reported.clear()
            while self._reports:
                report = self._reports.popleft()
                try:
                    index = await self._sessions.relay.report(self._shard, report)
                except MinkaError as error:
                    if error.code is Code.SHARD_FENCED and self._is_leaving:
                        continue  # the shard has left, as the goodbye tells
                    raise
                # Then duties that were given back are no longer in the rows, so nobody tells the shard to take them.
                await self._sessions.settled(index)
                self._say(ShardInstruction(recorded=ShardRecorded(sequence=report.sequence)))

    # From the active controller

    def granted(self, sequence: int, clearance_ms: int) -> None:
        """See Heard."""
        self._grant = ShardGrant(sequence=sequence, clearance_ms=clearance_ms)
        self._something.set()

    def fenced(self, reason: str) -> None:
        """See Heard."""
        if not self._is_leaving:
            self.end(MinkaError(Code.SHARD_FENCED, reason))

    # From the table

    def changed(self, duties: Sequence[int]) -> None:
        """The rows of these duties have changed; if there are none, the shard's own row."""
        if duties:
            self._telling.changed |= dict.fromkeys(duties)
            self._changed.set()
        else:
            self._row_changed()

    def everything_changed(self) -> None:
        """Note that any row may have changed."""
        self._telling.everything(self._sessions.table.state.duties)
        self._changed.set()
        self._row_changed()

    def _row_changed(self) -> None:
        row = self._sessions.table.state.duties.shards.get(self._shard.name)
        if row is not None and is_registered(row) and row.incarnation == self._shard.incarnation:
            return
        if self._is_leaving:
            self._say(ShardInstruction(goodbye=ShardGoodbye()))
        else:
            reason = row.state_reason if row is not None else "the shard was removed"
            self.end(MinkaError(Code.SHARD_FENCED, f"shard {self._shard.name}: {reason}"))

    # To the shard

    async def _release(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._telling.changed:
                instruction = self._telling.releases(self._sessions.table.state.duties)
                if instruction is not None:
                    self._say(instruction)
                if self._telling.waiting:
                    self._waiting.set()
                await turn()

    async def _hand_over(self) -> None:
        """Tell of duties with their payloads, message after message, while at most `MAX_BYTES` wait for the shard to
        take them. Duties created one after the other share messages.
        """
        pause = _RETRY_S[0]
        while True:
            await self._waiting.wait()
            await asyncio.sleep(self._sessions.gather(self))
            self._waiting.clear()
            self.told_at = time.monotonic()
            while wanted := self._telling.next_waiting(self._sessions.table.state.duties):
                while self._out_bytes > MAX_BYTES:
                    self._taken.clear()
                    await self._taken.wait()
                rows = self._sessions.table.state.duties.duties
                size = sum(rows[number].payload_bytes for number in wanted if number in rows)
                found = await self._payloads(list(filter(None, wanted.values())), size)
                instructions = self._telling.take(self._sessions.table.state.duties, wanted, found.get)
                for instruction in instructions:
                    self._say(instruction)
                if instructions:
                    pause = _RETRY_S[0]
                    await turn()
                elif self._telling.waiting:
                    await asyncio.sleep(pause)
                    pause = min(_RETRY_S[1], 2 * pause)

    async def _payloads(self, ids: Sequence[bytes], size: int) -> dict[bytes, bytes]:
        """The payloads that could be read; `size`: bytes of all."""
        if not ids:
            return {}
        await self._share.reserve(MAX_BYTES)
        try:
            return await self._sessions.reads.get_many(ids, size)
        except MinkaError as error:
            self._sessions.seldom.log(logging.WARNING, "payloads of duties can't be read", reason=str(error))
            read, found = self._sessions.payloads.get_many, dict[bytes, bytes]()
            for one in await asyncio.gather(*(read([id_], _READ_S) for id_ in ids), return_exceptions=True):
                if isinstance(one, dict):
                    found |= one
                elif not isinstance(one, MinkaError):
                    raise one from None
            return found
        finally:
            self._share.give(MAX_BYTES)
