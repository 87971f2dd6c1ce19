"""Tests of the driver's Ready loop, with a real log database whose disk can hang."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from rocksdict import Rdict

from minka.errors import Code, MinkaError
from minka.v1.raft_pb2 import Commands, ConfState, Entry, Message, MessageType
from minkad.coordinator import piece, raft_driver
from minkad.coordinator.piece import LEAST_BYTES, PIECE_BYTES, PIECE_S
from minkad.coordinator.raft_driver import RaftDriver
from minkad.core.raft import Config, RawNode
from minkad.storage import log_database
from minkad.storage.log_database import LogDatabase
from minkad.storage.log_mark import LogMark
from minkad.storage.raft_storage import RaftStorage
from tests.integration.replication.node import until

TICK_S = 0.01
ELECTION_TICKS = 10


class Machine:
    """A state machine that records the commands that it applies."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.may_encode: threading.Event | None = None  # None: the driver must not take snapshots

    def apply(self, data: bytes) -> None:
        self.commands.append(data)

    def capture(self) -> Callable[[], bytes]:
        assert self.may_encode is not None, "there are no snapshots here"
        may_encode, captured = self.may_encode, b"".join(self.commands)

        def encode() -> bytes:
            may_encode.wait()
            return captured

        return encode

    def decode(self, snapshot: bytes) -> bytes:
        raise AssertionError("there are no snapshots here")

    def restore(self, decoded: bytes) -> None:
        raise AssertionError("there are no snapshots here")


class LogOnDisk(LogDatabase):
    """A log database whose syncs hang while `disk` isn't set."""

    def __init__(self, path: Path, db: Rdict, mark: LogMark) -> None:
        self.disk = threading.Event()
        self.disk.set()
        super().__init__(path, db, mark)

    def flush_wal(self) -> None:
        self.disk.wait()
        super().flush_wal()


class Node:
    """One voter of a group; all voters of the group are in this process."""

    def __init__(
        self,
        nodes: "dict[int, Node]",
        raft_id: int,
        voters: int,
        path: Path,
        election_ticks: int,
        snapshot_entries: int = 1_000_000,
        piece_seconds: float = PIECE_S,
    ) -> None:
        self.nodes = nodes
        self.machine = Machine()
        self.log_db = LogOnDisk.open(path / str(raft_id))
        self.disk = self.log_db.disk
        conf_state = ConfState(voters=range(1, voters + 1))
        raft_log = self.log = RaftStorage(self.log_db)
        raft_log.bootstrap(conf_state)
        config = Config(
            id=raft_id,
            storage=raft_log,
            random=Random(raft_id).randrange,
            election_tick=election_ticks,
            applied=raft_log.snapshot().metadata.index,
            disable_proposal_forwarding=True,
        )
        self.driver = RaftDriver(
            RawNode(config),
            raft_log,
            self.log_db,
            self,
            self.machine,
            tick_seconds=TICK_S,
            snapshot_entries=snapshot_entries,
            conf_state=conf_state,
            on_progress=self._progressed,
            piece_seconds=piece_seconds,
        )
        self.was_whole = False
        self.terms: set[int] = set()
        self.dead = False
        self.sent: list[MessageType.ValueType] = []

    def _progressed(self) -> None:
        self.was_whole |= self.driver.log_is_checked

    def send(self, messages: Sequence[Message]) -> None:
        """Deliver the messages to the other nodes in the next turn of the loop."""
        for message in messages:
            self.terms.add(message.term)
            self.sent.append(message.type)
            asyncio.get_running_loop().call_soon(self._deliver, message)

    def _deliver(self, message: Message) -> None:
        if not self.dead:
            self.nodes[message.to].driver.receive([message])


@asynccontextmanager
async def group(
    path: Path,
    voters: int,
    election_ticks: int = ELECTION_TICKS,
    snapshot_entries: int = 1_000_000,
    piece_seconds: float = PIECE_S,
) -> AsyncIterator[dict[int, Node]]:
    """Run voters 1 to `voters`."""
    nodes: dict[int, Node] = {}
    for raft_id in range(1, voters + 1):
        nodes[raft_id] = Node(nodes, raft_id, voters, path, election_ticks, snapshot_entries, piece_seconds)
    tasks = []
    try:
        for node in nodes.values():
            await node.log_db.sync()
            tasks.append(asyncio.create_task(node.driver.run()))
        yield nodes
    finally:
        for task in tasks:
            task.cancel()
        for node in nodes.values():
            node.disk.set()
            node.log_db.close()


async def leader_of(nodes: dict[int, Node]) -> Node:
    """Wait until a node leads and may propose; returns this node."""
    await until(lambda: any(node.driver.leads_with_applied_term for node in nodes.values()))
    return next(node for node in nodes.values() if node.driver.leads_with_applied_term)


@pytest.mark.parametrize("whose", ["the leader's", "a follower's", "everybody's"])
async def test_a_slow_disk_costs_no_leadership(tmp_path: Path, whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a sync hangs, the nodes still send heartbeats and answer them, and the leader confirms its leadership. But
    each commit needs a quorum of disks.
    """
    monkeypatch.setattr(log_database, "STALLED_S", 60.0)
    async with group(tmp_path, 3) as nodes:
        leader = await leader_of(nodes)
        others = [node for node in nodes.values() if node is not leader]
        term = leader.driver.raw.basic_status().term
        stuck = {"the leader's": [leader], "a follower's": others[:1], "everybody's": list(nodes.values())}[whose]
        for node in stuck:
            node.disk.clear()
            node.sent.clear()
        proposal = leader.driver.propose(b"a")
        # Wait for far more heartbeats than an election timeout has ticks, so that an election would have begun.
        beats = 5 * ELECTION_TICKS
        await until(
            lambda: all(node.sent.count(MessageType.MSG_HEARTBEAT) >= beats for node in stuck if node is leader)
        )
        await until(
            lambda: all(
                node.sent.count(MessageType.MSG_HEARTBEAT_RESP) >= beats for node in stuck if node is not leader
            )
        )
        confirmed: list[float] = []
        leader.driver.confirm_leadership(1.0, confirmed.append)
        await until(lambda: bool(confirmed))
        assert leader.driver.is_leader
        assert {node.driver.raw.basic_status().term for node in nodes.values()} == {term}
        assert proposal.done() == (whose == "a follower's")
        for node in stuck:
            node.disk.set()
        await asyncio.wait_for(proposal, 5)
        await until(lambda: all(node.machine.commands == [b"a"] for node in nodes.values()))


async def test_the_log_keeps_entries_that_the_core_counts_as_unapplied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver may apply committed entries and make a snapshot while a sync hangs, but the core hears only after the
    sync that they are applied. Until then, the log keeps these entries, since the core reads them if it campaigns.
    """
    monkeypatch.setattr(log_database, "STALLED_S", 60.0)
    async with group(tmp_path, 3, election_ticks=100_000, snapshot_entries=1) as nodes:
        node = nodes[2]
        node.machine.may_encode = threading.Event()
        node.machine.may_encode.set()
        data = Commands(commands=[b"a"]).SerializeToString()
        entries = [Entry(index=index, term=1, data=data) for index in range(2, 6)]
        append = Message(type=MessageType.MSG_APP, from_id=1, to=2, term=1, index=1, log_term=1, commit=1)
        append.entries.extend(entries[:3])
        node.driver.receive([append])
        await until(lambda: MessageType.MSG_APP_RESP in node.sent)
        node.disk.clear()
        node.driver.receive(
            [
                Message(
                    type=MessageType.MSG_APP,
                    from_id=1,
                    to=2,
                    term=1,
                    index=4,
                    log_term=1,
                    commit=4,
                    entries=entries[3:],
                )
            ]
        )
        await until(lambda: node.driver.snapshot_index == 4)
        assert node.log.first_index() <= node.driver.raw.basic_status().applied + 1
        node.driver.raw.campaign()


async def test_a_committed_entry_is_applied_while_the_disk_writes_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round commits the first entry and appends the second one. With two voters, an entry is committed only when
    the leader's own disk has it.
    """
    monkeypatch.setattr(log_database, "STALLED_S", 60.0)
    async with group(tmp_path, 2, election_ticks=100_000) as nodes:
        nodes[1].driver.raw.campaign()
        await until(lambda: nodes[1].driver.leads_with_applied_term)
        held: list[Message] = []
        monkeypatch.setattr(nodes[2], "_deliver", held.append)
        first = nodes[1].driver.propose(b"a")
        index = nodes[1].log.last_index() + 1
        await until(lambda: any(m.type == MessageType.MSG_APP_RESP and m.index == index for m in held))
        await until(lambda: nodes[1].driver.match()[1] == index)
        nodes[1].disk.clear()
        nodes[1].driver.receive(held)
        second = nodes[1].driver.propose(b"b")
        await asyncio.wait_for(first, 10)
        assert nodes[1].machine.commands == [b"a"]
        assert not second.done()
        monkeypatch.undo()
        nodes[1].disk.set()
        await asyncio.wait_for(second, 10)


async def test_a_leader_whose_disk_does_not_answer_is_replaced(tmp_path: Path) -> None:
    async with group(tmp_path, 3) as nodes:
        leader = await leader_of(nodes)
        leader.disk.clear()
        first = leader.driver.propose(b"a")
        await until(lambda: leader.log_db.stalled)
        proposal = leader.driver.propose(b"b")
        await until(lambda: not leader.driver.is_leader)
        assert (await leader_of(nodes)) is not leader
        assert not proposal.done()
        leader.disk.set()
        with pytest.raises(MinkaError, match="NOT_CONTROLLER"):
            await asyncio.wait_for(proposal, 5)
        await asyncio.wait([first], timeout=5)
        assert first.done()
        assert first.exception() is None or "OUTCOME_UNKNOWN" in str(first.exception())


async def test_an_election_begins_at_once_when_the_leaders_process_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the leader's process has died, the other nodes elect a leader long before an election timeout."""
    monkeypatch.setattr(raft_driver, "CAMPAIGN_TICKS", 100_000)
    async with group(tmp_path, 3, election_ticks=100_000) as nodes:
        nodes[1].driver.raw.campaign()
        await until(lambda: nodes[1].driver.leads_with_applied_term)
        # A node that lacks an entry would not be elected: wait until all nodes have the same entries.
        await until(lambda: len({node.driver.applied_index for node in nodes.values()}) == 1)
        nodes[1].dead = True
        for node in nodes.values():
            node.driver.report_gone(1)
        await until(lambda: nodes[2].driver.is_leader)


async def test_a_report_of_a_dead_process_does_not_handle_waiting_messages(tmp_path: Path) -> None:
    """The report of a dead process doesn't let the core handle messages that wait for the end of a sync: a snapshot
    among them could change the configuration before all entries are applied.
    """
    async with group(tmp_path, 3, election_ticks=100_000) as nodes:
        nodes[1].driver.raw.campaign()
        await until(lambda: nodes[1].driver.leads_with_applied_term)
        await until(lambda: len({node.driver.applied_index for node in nodes.values()}) == 1)
        slow = nodes[3]
        slow.disk.clear()
        await nodes[1].driver.propose(b"a")
        await until(lambda: slow.driver.raw.last_index() == nodes[1].driver.raw.last_index())
        await nodes[1].driver.propose(b"b")
        has = slow.driver.raw.last_index()
        slow.driver.report_gone(1)
        assert slow.driver.raw.last_index() == has < nodes[1].driver.raw.last_index()
        slow.disk.set()
        await until(lambda: slow.machine.commands == [b"a", b"b"])


async def test_commands_of_one_turn_share_an_entry_and_keep_their_order(tmp_path: Path) -> None:
    """The driver puts a thousand proposals into few entries. All nodes apply the commands in their order."""
    async with group(tmp_path, 3) as nodes:
        leader = await leader_of(nodes)
        before = leader.driver.applied_index
        pairs = [(b"%d" % i, b"%d'" % i) for i in range(1000)]
        await asyncio.gather(*(leader.driver.propose(*pair) for pair in pairs))
        assert leader.driver.applied_index - before == 1
        wanted = [command for pair in pairs for command in pair]
        await until(lambda: all(node.machine.commands == wanted for node in nodes.values()))
        large = [b"x" * 100_000] * 5
        await asyncio.gather(*(leader.driver.propose(command) for command in large))
        assert leader.driver.applied_index - before == 1 + 3
        assert leader.machine.commands == wanted + large


async def test_a_large_proposal_is_applied_in_pieces_with_turns_of_the_loop_between(tmp_path: Path) -> None:
    """The loop can handle heartbeats and votes between two pieces. The proposal is done when all pieces are applied."""
    async with group(tmp_path, 3, piece_seconds=0.0) as nodes:
        leader = await leader_of(nodes)
        command = b"x" * (PIECE_BYTES // 4)
        seen: set[int] = set()
        proposal = leader.driver.propose(*[command] * 400)
        while not proposal.done():
            seen.add(len(leader.machine.commands))
            await asyncio.sleep(0)
        assert leader.machine.commands == [command] * 400
        steps = sorted(seen | {400})
        assert max(after - before for before, after in pairwise(steps)) <= 5


@pytest.mark.parametrize(("pause", "seconds", "waits"), [(0.0, 0.0, False), (60.0, 0.0, True), (60.0, 60.0, False)])
async def test_other_tasks_get_a_turn_only_after_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float, seconds: float, waits: bool
) -> None:
    """The driver applies slow commands in pieces. After each piece, it waits for a turn of the loop, unless it has
    paused lately anyway.
    """
    turns: list[int] = []

    async def turn() -> None:
        turns.append(1)

    monkeypatch.setattr(raft_driver, "turn", turn)
    monkeypatch.setattr(piece, "PAUSE_S", pause)
    async with group(tmp_path, 1, piece_seconds=seconds) as nodes:
        leader = await leader_of(nodes)
        for _ in range(2 * PIECE_BYTES // LEAST_BYTES):
            await leader.driver.propose(b"a")
        assert bool(turns) == waits


async def test_waiting_for_logs_fails_when_the_leadership_is_lost(tmp_path: Path) -> None:
    """On a former leader, `logged_by` ends with OUTCOME_UNKNOWN: the node no longer hears which nodes have an entry."""
    async with group(tmp_path, 3) as nodes:
        leader = await leader_of(nodes)
        leader.dead = True  # its messages are lost
        waiting = asyncio.ensure_future(leader.driver.logged_by([99]))
        other = next(raft_id for raft_id, node in nodes.items() if node is not leader)
        await until(lambda: not leader.driver.is_leader or nodes[other].driver.is_leader)
        leader.dead = False
        with pytest.raises(MinkaError) as lost:
            await asyncio.wait_for(waiting, 10)
        assert lost.value.code is Code.OUTCOME_UNKNOWN


async def test_an_older_copy_of_a_log_is_refused(tmp_path: Path) -> None:
    async with group(tmp_path, 3, election_ticks=100_000) as nodes:
        nodes[1].driver.raw.campaign()
        await until(lambda: nodes[1].driver.leads_with_applied_term)
        await nodes[1].driver.propose(b"a")
        await until(lambda: all(node.driver.applied_index == nodes[1].driver.applied_index for node in nodes.values()))
        await until(lambda: all(node.driver.log_is_checked for node in nodes.values()))
        copy = Node(nodes, 3, 3, tmp_path / "copy", 100_000)
        await copy.log_db.sync()
        nodes[3].dead, nodes[3] = True, copy
        try:
            with pytest.raises(MinkaError, match="DATA_DIRECTORY_ROLLED_BACK: the leader of the coordinator knows"):
                await asyncio.wait_for(copy.driver.run(), 10)
            assert not copy.was_whole
        finally:
            copy.log_db.close()


async def test_entries_are_applied_while_a_snapshot_is_encoded(tmp_path: Path) -> None:
    async with group(tmp_path, 1, snapshot_entries=3) as nodes:
        leader = await leader_of(nodes)
        encoding = leader.machine.may_encode = threading.Event()
        try:
            for number in range(8):
                await leader.driver.propose(b"%d" % number)
            assert leader.driver.snapshot_index == 1, "the next snapshot is still being encoded"
            assert len(leader.machine.commands) == 8
        finally:
            encoding.set()
        await until(lambda: leader.log.snapshot().metadata.index == leader.driver.applied_index)
        assert leader.log.snapshot().data == b"".join(leader.machine.commands), "the last snapshot has all commands"


async def test_the_driver_ends_with_the_error_of_a_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with group(tmp_path, 1) as nodes:
        driver = (await leader_of(nodes)).driver

        def broken() -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(driver, "_is_away", True)
        monkeypatch.setattr(driver.raw, "tick", broken)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(driver.run(), 10)
