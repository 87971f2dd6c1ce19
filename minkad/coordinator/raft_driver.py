"""The Ready loop around core/raft: persist, send, apply, as etcd/raft expects."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Protocol

from minka.errors import Code, MinkaError
from minka.v1.raft_pb2 import (
    ENTRY_CONF_CHANGE,
    ENTRY_NORMAL,
    MSG_HEARTBEAT,
    MSG_HEARTBEAT_RESP,
    MSG_VOTE_RESP,
    Commands,
    ConfChange,
    ConfChangeV2,
    ConfState,
    Entry,
    Message,
    Snapshot,
)
from minkad.coordinator.leader_silence import LeaderSilence
from minkad.coordinator.piece import PIECE_S, Piece
from minkad.coordinator.raft_proposals import Proposals, answer, shares_of
from minkad.core.raft import (
    LogRolledBack,
    ProposalDropped,
    QuorumRolledBack,
    RaftError,
    RawNode,
    ReadState,
    Ready,
    Role,
)
from minkad.core.raft.answers import without_repeated_answers
from minkad.process import tasks
from minkad.process.clock import boottime
from minkad.process.turns import InThread, turn
from minkad.storage.log_database import LogDatabase
from minkad.storage.raft_storage import RaftStorage

log: Final = logging.getLogger(__name__)

MAX_QUEUED_MESSAGES: Final = 4096  # later ones are dropped, and Raft sends them again
MAX_QUEUED_PROPOSALS: Final = 8192
CAMPAIGN_TICKS: Final = 4  # when the leader has died, the voters campaign one after the other: after 2, 6, 10 … ticks
MAX_UNAPPLIED_BYTES: Final = 16 * 1024 * 1024  # with more committed bytes, the Ready loop waits until all are applied

_HEARTBEATS: Final = (MSG_HEARTBEAT, MSG_HEARTBEAT_RESP)


class StateMachine(Protocol):
    """The target of committed entries."""

    def apply(self, data: bytes) -> None:
        """Apply a committed command."""

    def capture(self) -> Callable[[], bytes]:
        """Capture the state as of the last applied entry. A thread calls the returned function, which encodes the state
        as a snapshot.
        """

    def decode(self, snapshot: bytes) -> Any:
        """The content of a snapshot; called on a thread."""

    def restore(self, decoded: Any) -> None:
        """Replace everything with the decoded content."""


class Transport(Protocol):
    """Takes messages to the other nodes; may lose them."""

    def send(self, messages: Sequence[Message]) -> None:
        """Send each message to the node with its raft id."""


class RaftDriver:
    """Owns the RawNode. Everything happens on the event loop, except that threads sync the disk, and encode and decode
    snapshots.

    One task persists and sends; another task applies committed entries in pieces. So messages and proposals don't wait
    until thousands of rows are applied, except after a change of the configuration, or with more than
    MAX_UNAPPLIED_BYTES. Heartbeats never wait for this.
    """

    def __init__(
        self,
        raw: RawNode,
        raft_storage: RaftStorage,
        log_db: LogDatabase,
        transport: Transport,
        machine: StateMachine,
        *,
        tick_seconds: float,
        snapshot_entries: int,
        conf_state: ConfState,
        on_progress: Callable[[], None],
        clock: Callable[[], float] = boottime,
        in_thread: InThread = asyncio.to_thread,
        piece_seconds: float = PIECE_S,
    ) -> None:
        """`piece_seconds`: the time to apply committed commands before other tasks get a turn."""
        self.raw = raw
        self.conf_state = conf_state  # by the entries applied so far
        # The last entry that is applied. Its last commands may still be waiting for a turn.
        self.applied_index = raft_storage.snapshot().metadata.index
        self.settled_index = self.applied_index  # the last entry that is applied whole
        self.snapshot_index = self.applied_index  # the last entry in the newest snapshot
        self._log = raft_storage
        self._log_db = log_db
        self._transport = transport
        self._machine = machine
        self._tick_seconds = tick_seconds
        self._snapshot_entries = snapshot_entries
        self._on_progress = on_progress
        self._clock = clock
        self._silence = LeaderSilence(clock())
        self._inbox: deque[Message] = deque()
        self._gone: set[int] = set()  # nodes whose processes are said to have died; the loop has yet to act on it
        self._proposals: Proposals = []  # not given to Raft yet
        # Proposals that this leader has appended and not applied: (index, term, proposals), with ascending indexes.
        self._waiting: deque[tuple[int, int, Proposals]] = deque()
        self._waiting_count = 0  # of the proposals in `_waiting`
        # By the context of the ReadIndex request: the time when it was made, and the function to call.
        self._confirmations: dict[bytes, tuple[float, Callable[[float], None]]] = {}
        self._confirmation_number = 0
        self._applied_term = 0  # the term of the last entry applied since the start
        self._gave_up_term = 0  # the last term in which this node gave up its leader
        self._log_is_checked = False
        self._tick_due = self._is_applying = False
        # Between `ready` and `advance`, the Ready loop waits for the disk, for the decoding of a snapshot, or until all
        # is applied. Meanwhile heartbeats are handled outside of the loop.
        self._is_away = False
        self._snapshot_due = False  # a change of the configuration was applied since the last snapshot
        self._snapshotting: asyncio.Task[None] | None = None
        self._in_thread = in_thread
        self._wake = asyncio.Event()
        self._turns: list[asyncio.Future[None]] = []  # callers that wait for the next turn of the Ready loop
        self._committed: deque[Entry] = deque()  # entries that are committed and not applied
        self._committed_bytes = self._restores = 0  # bytes in `_committed`; snapshots restored since the start
        self._piece = Piece(clock, piece_seconds)
        self._apply_wake = asyncio.Event()
        self._all_applied = asyncio.Event()  # set when the last entry of `_committed` is applied

    # Inputs

    def receive(self, messages: Sequence[Message]) -> None:
        """Messages of other nodes have arrived.

        Messages to another raft id are dropped: they are for this node before it came back with an empty disk.
        """
        own = self.raw.raft.id
        for message in messages:
            if message.to != own:
                continue
            if self._is_away and message.type in _HEARTBEATS:
                self._step(message)
            elif len(self._inbox) < MAX_QUEUED_MESSAGES:
                self._inbox.append(message)
        if self._is_away:
            self._go_on_without_disk()
        self._wake.set()

    def propose(self, *commands: bytes) -> asyncio.Future[None]:
        """Propose commands, of which all are committed, or none. The future is done when all are applied here, one
        after the other. The proposals of one turn of the loop share entries.

        The future fails with NOT_CONTROLLER if nothing was appended, with OVERLOADED if MAX_QUEUED_PROPOSALS proposals
        are waiting, and with OUTCOME_UNKNOWN if this node loses the leadership meanwhile.
        """
        future = asyncio.get_running_loop().create_future()
        if len(self._proposals) >= MAX_QUEUED_PROPOSALS:
            future.set_exception(MinkaError(Code.OVERLOADED, f"{MAX_QUEUED_PROPOSALS} proposals are waiting"))
            return future
        self._proposals.append((commands, future))
        self._wake.set()
        return future

    def propose_conf_change(self, change: ConfChangeV2) -> None:
        """Propose a change of voters or learners. While another change is under way, this one is dropped, and the
        caller has to propose it again.
        """
        try:
            self.raw.propose_conf_change(change)
        except ProposalDropped:
            log.info("a membership change has to wait for the one under way")
        self._wake.set()

    def confirm_leadership(self, now: float, confirmed: Callable[[float], None]) -> None:
        """Call `confirmed(now)` when a quorum has acknowledged, after `now`, that this node leads (ReadIndex)."""
        self._silence.asks(self._clock())
        self._confirmation_number += 1
        context = self._confirmation_number.to_bytes(8, "big")
        self._confirmations[context] = (now, confirmed)
        while len(self._confirmations) > 64:
            self._confirmations.pop(next(iter(self._confirmations)))
        try:
            self.raw.read_index(context)
        except ProposalDropped:
            self._confirmations.pop(context)
        if self._is_away:
            asyncio.get_running_loop().call_soon(self._go_on_without_disk)
        self._wake.set()

    def transfer_leadership(self, raft_id: int) -> None:
        """Ask another voter to take over."""
        self.raw.transfer_leader(raft_id)
        self._wake.set()

    def match(self) -> dict[int, int]:
        """By raft id, the index up to which each member has this leader's log; empty if this node doesn't lead."""
        return self.raw.match()

    async def logged_by(self, raft_ids: Collection[int]) -> None:
        """Wait, perhaps forever, until each of these members has synced everything that was proposed here so far.

        Raises OUTCOME_UNKNOWN when this node no longer leads: then the members no longer tell it how far they are.
        """
        term = self.raw.basic_status().term
        while self._proposals:
            await self._next_turn()
        index = self.raw.last_index()
        while self._leads_in(term) and any(self.match().get(raft_id, 0) < index for raft_id in raft_ids):
            await self._next_turn()
        if not self._leads_in(term):
            raise MinkaError(Code.OUTCOME_UNKNOWN, "this node no longer leads")

    def _leads_in(self, term: int) -> bool:
        return self.is_leader and self.raw.basic_status().term == term

    async def _next_turn(self) -> None:
        self._turns.append(asyncio.get_running_loop().create_future())
        await self._turns[-1]

    def report_snapshot(self, raft_id: int, ok: bool) -> None:
        """The transport has sent a snapshot, or has failed to."""
        self.raw.report_snapshot(raft_id, ok)
        self._wake.set()

    def report_unreachable(self, raft_id: int) -> None:
        """The transport could not deliver a message to this node."""
        self.raw.report_unreachable(raft_id)

    def report_gone(self, raft_id: int) -> None:
        """The process of this node has died. If the node led, the others elect another leader. They campaign one after
        the other, so that they don't split the votes. Such a report counts at most once a term, since a firewall may
        cause it while the leader lives.
        """
        self._gone.add(raft_id)
        self._wake.set()

    # Queries

    @property
    def is_leader(self) -> bool:
        """True if this node leads, as far as it knows."""
        return self.raw.raft.role is Role.LEADER

    @property
    def log_is_checked(self) -> bool:
        """True if this log has all committed entries that the leader knew it to have: this node has accepted a
        heartbeat since its start, or leads.
        """
        return self._log_is_checked or self.is_leader

    @property
    def leads_with_applied_term(self) -> bool:
        """True if this node leads and has applied an entry of its own term, and so everything before it."""
        status = self.raw.basic_status()
        return status.role is Role.LEADER and self._applied_term == status.term

    @property
    def former_leader(self) -> tuple[int, float]:
        """For a leader: the raft id of the last other leader (0: none), and a time of this node's clock after which no
        quorum can have confirmed an earlier leader.
        """
        now = self._clock()
        return self._silence.leader, self._silence.proven_since(self.raw.basic_status().term, now)

    @property
    def proposals_under_way(self) -> int:
        """The number of proposals that have neither been applied nor failed, plus the committed entries that are not
        applied.
        """
        return len(self._proposals) + self._waiting_count + len(self._committed) + self._is_applying

    # The loop

    async def run(self) -> None:
        """Run until cancelled. Raises STORAGE_FAILED when the disk fails: the daemon must stop."""
        ticker = tasks.awaited(self._tick(), "ticks")
        applier = tasks.awaited(self._apply_committed(), "apply")
        for event in (self._wake, self._all_applied):
            for task in (ticker, applier):
                task.add_done_callback(lambda _, event=event: event.set())  # type: ignore[misc]
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                for task in (ticker, applier):
                    if task.done():
                        task.result()  # raises
                self._take_inputs()
                while self.raw.has_ready():
                    await self._handle(self.raw.ready())
                    self._take_inputs()
                self._on_progress()
                turns, self._turns = self._turns, []
                for turned in turns:
                    if not turned.done():
                        turned.set_result(None)
        finally:
            ticker.cancel()
            applier.cancel()
            if self._snapshotting is not None:
                self._snapshotting.cancel()
            self._fail_waiting("the node is stopping")

    async def _tick(self) -> None:
        # One tick at each wake-up: a process that was stopped for long must not be a candidate at once.
        while True:
            await asyncio.sleep(self._tick_seconds)
            if self._is_away:
                self.raw.tick()
                self._go_on_without_disk()
            else:
                self._tick_due = True
            self._wake.set()

    def _go_on_without_disk(self) -> None:
        """Do the work that needn't wait for the disk: heartbeats and confirmations of reads. So a slow disk costs
        neither the leadership nor clearances. A leader whose disk doesn't answer at all sends no
        heartbeats, and loses both.
        """
        self._send(self.raw.heartbeats())
        self._confirm(self.raw.confirmed_reads())
        if not self.is_leader:
            self._on_progress()  # another node may lead by now

    @property
    def _is_stalled_leader(self) -> bool:
        """True if this node leads and its disk doesn't answer, so that another leader must be elected."""
        return self.is_leader and self._log_db.stalled

    def _send(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        holds_back = self._is_stalled_leader
        self._transport.send([m for m in messages if not (holds_back and m.type in _HEARTBEATS)])

    def _confirm(self, reads: Iterable[ReadState]) -> None:
        if self._is_stalled_leader:
            return
        for read in reads:
            sent_at, confirmed = self._confirmations.pop(read.context, (0.0, None))
            if confirmed is not None:
                confirmed(sent_at)

    def _take_inputs(self) -> None:
        if self._tick_due:
            self._tick_due = False
            self.raw.tick()
        while self._inbox:
            self._step(self._inbox.popleft())
        while self._gone:  # after the inbox, which may have these nodes' last messages
            self._give_up(self._gone.pop())
        if self._proposals:
            self._propose_queued()

    def _give_up(self, raft_id: int) -> None:
        status = self.raw.status()
        if status.basic.leader_id != raft_id or self._gave_up_term == status.basic.term:
            return
        self._gave_up_term = status.basic.term
        voters = sorted(status.config.voters.ids() - {raft_id})
        rank = voters.index(status.basic.id) if status.basic.id in voters else len(voters)
        self.raw.forget_leader(2 + CAMPAIGN_TICKS * rank)  # not before the others know that the leader is gone

    def _step(self, message: Message) -> None:
        self._silence.handle(message, self.raw.basic_status(), self._clock())
        try:
            self.raw.step(message)
            if message.type == MSG_HEARTBEAT and message.from_id == self.raw.raft.leader_id:
                self._log_is_checked = True
        except LogRolledBack as end:
            text = f"the leader of the coordinator knows that this node had more: {end}"
            self._log_db.fail(MinkaError(Code.DATA_DIRECTORY_ROLLED_BACK, text))
        except QuorumRolledBack as proof:
            self._log_db.fail(MinkaError(Code.QUORUM_ROLLED_BACK, f"{proof} (leader: {message.from_id})"))
        except RaftError as refusal:
            log.debug("a message was refused", extra={"sender": message.from_id, "reason": str(refusal)})

    def _propose_queued(self) -> None:
        proposals, self._proposals = self._proposals, []
        shares = shares_of(proposals)
        entries = [
            Commands(commands=[command for commands, _ in share for command in commands]).SerializeToString()
            for share in shares
        ]
        try:
            self.raw.propose_batch(entries)
        except ProposalDropped as reason:
            answer(proposals, MinkaError(Code.NOT_CONTROLLER, f"nothing was proposed: {reason}"))
            return
        first = self.raw.last_index() - len(shares) + 1
        term = self.raw.basic_status().term
        self._waiting.extend((first + i, term, share) for i, share in enumerate(shares))
        self._waiting_count += len(proposals)

    async def _handle(self, ready: Ready) -> None:
        self._send(ready.messages_at_once)
        self._log.stage(ready)
        ahead = _durable_before(ready)
        self._pass_on(ready.committed_entries[:ahead])
        if ready.must_sync or ready.snapshot is not None:
            self._is_away = True
            await self._log_db.sync()
            self._is_away = False
        for message in ready.messages:
            if message.type == MSG_VOTE_RESP and not message.reject:
                message.silence_ms = self._silence.milliseconds(self._clock())
        self._send(without_repeated_answers(ready.messages))
        if ready.snapshot is not None:
            await self._restore(ready.snapshot)
        self._confirm(ready.read_states)
        await self._let_apply(ready.committed_entries, ahead)
        self.raw.advance(ready)
        if ready.soft_state is not None and not self.is_leader:
            self._fail_waiting("another node was elected")
            self._confirmations.clear()

    async def _restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot; until that is done, nothing is applied."""
        metadata = snapshot.metadata
        self._committed.clear()
        self._committed_bytes = 0
        self._restores += 1
        self._is_away = True
        decoded = await self._in_thread(self._machine.decode, snapshot.data)
        self._is_away = False
        self.conf_state = metadata.conf_state
        self.applied_index = self.settled_index = self.snapshot_index = metadata.index
        self._machine.restore(decoded)
        log.info("restored the state from a snapshot", extra={"index": metadata.index})

    # Applying

    def _pass_on(self, entries: Sequence[Entry]) -> None:
        """Have committed entries applied."""
        if entries:
            self._committed.extend(entries)
            self._committed_bytes += sum(len(entry.data) for entry in entries)
            self._all_applied.clear()
            self._apply_wake.set()

    async def _let_apply(self, entries: Sequence[Entry], passed_on: int) -> None:
        """Have committed entries applied; the first `passed_on` were passed on earlier. A change of the configuration
        is applied before `advance`, after which the core allows the next change.
        """
        if not entries:
            return
        self._pass_on(entries[passed_on:])
        is_change = any(entry.type != ENTRY_NORMAL for entry in entries)
        if is_change or self._committed_bytes > MAX_UNAPPLIED_BYTES:
            self._is_away = True
            await self._all_applied.wait()
            self._is_away = False

    async def _apply_committed(self) -> None:
        while True:
            await self._apply_wake.wait()
            self._apply_wake.clear()
            self._is_applying = True
            self._piece.go_on()
            while self._committed:
                entry = self._committed.popleft()
                self._committed_bytes -= len(entry.data)
                await self._apply(entry)
                self._snapshot_if_due()
            self._is_applying = False
            self._piece.pause()
            self._snapshot_if_due()
            self._all_applied.set()
            self._on_progress()

    async def _apply(self, entry: Entry) -> None:
        assert entry.index == self.applied_index + 1, (entry.index, self.applied_index)
        self.applied_index = entry.index
        if entry.type == ENTRY_NORMAL:
            if not await self._apply_commands(entry):
                return
        else:
            is_old = entry.type == ENTRY_CONF_CHANGE
            change = ConfChange.FromString(entry.data) if is_old else ConfChangeV2.FromString(entry.data)
            self.conf_state = self.raw.apply_conf_change(change)
            self._snapshot_due = True
        self._applied_term, self.settled_index = entry.term, entry.index
        while self._waiting and self._waiting[0][0] <= entry.index:
            index, term, proposals = self._waiting.popleft()
            self._waiting_count -= len(proposals)
            if (index, term) == (entry.index, entry.term):
                answer(proposals, None)
            else:
                answer(proposals, MinkaError(Code.OUTCOME_UNKNOWN, "another controller took the entry's place"))

    async def _apply_commands(self, entry: Entry) -> bool:
        """Apply an entry's commands in pieces; a piece may have commands of several entries. False if a snapshot has
        replaced everything meanwhile.
        """
        restores = self._restores
        for command in Commands.FromString(entry.data).commands:
            if self._piece.is_over():
                await turn()
                self._piece.begin()
                if self._restores != restores:
                    return False
            self._machine.apply(command)
            self._piece.add(command)
        return True

    def _fail_waiting(self, reason: str) -> None:
        waiting, self._waiting, self._waiting_count = self._waiting, deque(), 0
        for _, _, proposals in waiting:
            answer(proposals, MinkaError(Code.OUTCOME_UNKNOWN, f"proposed, but not seen committed: {reason}"))

    def _snapshot_if_due(self) -> None:
        # A new member refuses a snapshot from before it became one, so each change of the configuration needs a new
        # snapshot.
        if not self._snapshot_due and self.applied_index - self.snapshot_index < self._snapshot_entries:
            return
        if self.applied_index < self._log.first_index():
            return  # a snapshot from the leader has replaced the log, and is about to be restored
        if self._snapshotting is not None and not self._snapshotting.done():
            return  # this is checked again when it ends
        self._snapshot_due = False
        snapshot = self._snapshot(self.applied_index, self.conf_state, self._machine.capture())
        self._snapshotting = tasks.start(snapshot, "snapshot")
        self._snapshotting.add_done_callback(lambda _: self._apply_wake.set())

    async def _snapshot(self, index: int, conf_state: ConfState, encode: Callable[[], bytes]) -> None:
        """Encode the state captured at `index`, and store it as the log's snapshot. Entries are applied meanwhile."""
        data = await self._in_thread(encode)
        if index < max(self._log.first_index(), self.snapshot_index):
            return  # a newer snapshot from the leader has replaced the log meanwhile
        self._log.stage_snapshot(index, self._log.term(index), conf_state, data)
        # A follower that lags by less than half of `snapshot_entries` gets entries instead of the snapshot.
        last_removed = min(index - self._snapshot_entries // 2, self.raw.compactable())
        if last_removed >= self._log.first_index():
            self._log.compact(last_removed)
        self.snapshot_index = index


def _durable_before(ready: Ready) -> int:
    """The number of committed entries that can be applied before the sync, since an earlier round has written them. The
    first change of the configuration and all entries after it wait: the loop does nothing else while it is applied.
    """
    first_new = ready.entries[0].index if ready.entries else None
    for number, entry in enumerate(ready.committed_entries):
        if entry.type != ENTRY_NORMAL or entry.index == first_new:
            return number
    return len(ready.committed_entries)
