"""Runs the traces of `interaction/`: groups of nodes, message by message."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from minka.v1.raft_pb2 import (
    CONF_CHANGE_TRANSITION_AUTO,
    CONF_CHANGE_TRANSITION_JOINT_EXPLICIT,
    CONF_CHANGE_TRANSITION_JOINT_IMPLICIT,
    MSG_SNAP,
    ConfChange,
    ConfChangeV2,
    Entry,
    Message,
    MessageType,
)
from minkad.core.raft import (
    NO_LIMIT,
    Compacted,
    LocalMessage,
    PeerNotFound,
    ProposalDropped,
    Ready,
    SnapOutOfDate,
    SnapshotTemporarilyUnavailable,
    Unavailable,
    from_entry,
)
from tests.vectors import describe
from tests.vectors.confchange_driver import ParseError, parse_changes
from tests.vectors.datadriven import Case, parse_directive
from tests.vectors.interaction_nodes import CommandError, HistoryStorage, Node, OutOfScope, make_node, node_settings

LEVELS = ("DEBUG", "INFO", "WARN", "ERROR", "FATAL", "NONE")
TRANSITIONS = {
    "auto": CONF_CHANGE_TRANSITION_AUTO,
    "implicit": CONF_CHANGE_TRANSITION_JOINT_IMPLICIT,
    "explicit": CONF_CHANGE_TRANSITION_JOINT_EXPLICIT,
}
# The texts that errors have in the traces.
ERRORS: dict[type[Exception], str] = {
    ProposalDropped: "raft proposal dropped",
    PeerNotFound: "raft: cannot step as peer not found",
    LocalMessage: "raft: cannot step raft local message",
    Compacted: "requested index is unavailable due to compaction",
    Unavailable: "requested entry at index is unavailable",
    SnapOutOfDate: "requested index is older than the existing snapshot",
    SnapshotTemporarilyUnavailable: "snapshot is temporarily unavailable",
}
_RAFT_ERRORS = tuple(ERRORS)
OUT_OF_SCOPE = {
    "process-append-thread": "asynchronous storage writes are out of scope",
    "process-apply-thread": "asynchronous storage writes are out of scope",
    "forget-leader": "forget-leader is out of scope",
}


_REPORTED: tuple[type[Exception], ...] = (CommandError, ParseError, *_RAFT_ERRORS)


class InteractionDriver:
    """Carries out the commands of a trace. It has the nodes, and the messages under way between them."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._messages: list[Message] = []
        self._out: list[str] = []
        self._level = 0
        self.ignored: set[str] = set()  # arguments that no command knows
        self._commands: dict[str, Callable[[Case], None]] = {
            "_breakpoint": lambda _: None,
            "add-nodes": self._add_nodes,
            "campaign": lambda case: self._first(case).raw.campaign(),
            "compact": self._compact,
            "deliver-msgs": self._deliver_msgs,
            "log-level": lambda case: self._set_level(case.positional()[0]),
            "process-ready": self._process_ready,
            "propose": lambda case: self._first(case).raw.propose(case.positional()[1].encode()),
            "propose-conf-change": self._propose_conf_change,
            "raft-log": lambda case: self._raft_log(self._first(case)),
            "raft-state": self._raft_state,
            "report-unreachable": self._report_unreachable,
            "send-snapshot": self._send_snapshot,
            "set-randomized-election-timeout": self._set_election_timeout,
            "stabilize": self._stabilize,
            "status": self._status,
            "tick-election": lambda case: self._tick(case, self._first(case).config.election_tick),
            "tick-heartbeat": lambda case: self._tick(case, self._first(case).config.heartbeat_tick),
            "transfer-leadership": self._transfer_leadership,
        }

    def run(self, case: Case) -> str:
        """Run the command of a case; returns the command's output. Raises OutOfScope."""
        self._out = []
        try:
            self._command(case)
            if case.command != "propose-conf-change":  # its input is the change, not commands
                for line in case.input.splitlines():
                    command, args = parse_directive(line)
                    self._command(replace(case, command=command, args=args, input=""))
        except _REPORTED as error:
            if self._quiet():
                return ERRORS.get(type(error), str(error))
            self._write(ERRORS.get(type(error), str(error)))
        return "".join(self._out) or "ok"

    def _command(self, case: Case) -> None:
        if case.command in OUT_OF_SCOPE:
            raise OutOfScope(OUT_OF_SCOPE[case.command])
        if case.command not in self._commands:
            raise CommandError("unknown command")
        self._commands[case.command](case)

    # Output

    def _quiet(self) -> bool:
        return LEVELS[self._level] == "NONE"

    def _write(self, text: str) -> None:
        if not self._quiet():
            self._out.append(text)

    def _log(self, level: str, text: str) -> None:
        if LEVELS.index(level) >= self._level:
            self._write(f"{level} {text}\n")

    @contextmanager
    def _indented(self) -> Iterator[None]:
        outer, self._out = self._out, []
        try:
            yield
        finally:
            outer.extend(f"  {line}\n" for line in "".join(self._out).splitlines())
            self._out = outer

    def _set_level(self, name: str) -> None:
        if name.upper() not in LEVELS:
            raise CommandError(f"log levels must be either of [{' '.join(LEVELS)}]")
        self._level = LEVELS.index(name.upper())

    # Nodes

    def _node(self, id_: str | int) -> Node:
        return self._nodes[int(id_) - 1]

    def _first(self, case: Case) -> Node:
        return self._node(case.positional()[0])

    def _add_nodes(self, case: Case) -> None:
        bootstrap, settings, ignored = node_settings(case)
        self.ignored |= ignored
        for _ in range(int(case.positional()[0])):
            self._nodes.append(make_node(len(self._nodes) + 1, bootstrap, settings, self._log))

    # Commands

    def _tick(self, case: Case, times: int) -> None:
        for _ in range(times):
            self._first(case).raw.tick()

    def _set_election_timeout(self, case: Case) -> None:
        self._first(case).raw.raft.randomized_election_timeout = int(case.values("timeout")[0])

    def _compact(self, case: Case) -> None:
        node = self._first(case)
        node.storage.compact(int(case.positional()[1]))
        self._raft_log(node)

    def _report_unreachable(self, case: Case) -> None:
        at, whom = case.positional()
        self._node(at).raw.report_unreachable(int(whom))

    def _transfer_leadership(self, case: Case) -> None:
        self._node(case.values("from")[0]).raw.transfer_leader(int(case.values("to")[0]))

    def _propose_conf_change(self, case: Case) -> None:
        for arg in case.args:
            if arg.values and arg.key not in ("v1", "transition"):
                raise CommandError(f"unknown command {arg.key}")
        transition = (case.values("transition") or ("auto",))[-1]
        if transition not in TRANSITIONS:
            raise CommandError(f"unknown transition {transition}")
        changes = parse_changes(case.input)
        change: ConfChange | ConfChangeV2
        if (case.values("v1") or ("false",))[-1].lower() in ("1", "t", "true"):
            if len(changes) > 1 or transition != "auto":
                raise CommandError("v1 conf change can only have one operation and no transition")
            change = ConfChange(type=changes[0].type, node_id=changes[0].node_id)
        else:
            change = ConfChangeV2(transition=TRANSITIONS[transition], changes=changes)
        self._first(case).raw.propose_conf_change(change)

    def _send_snapshot(self, case: Case) -> None:
        from_id, to = map(int, case.positional())
        node = self._node(from_id)
        message = Message(
            type=MSG_SNAP,
            term=node.raw.basic_status().term,
            from_id=from_id,
            to=to,
            snapshot=node.storage.snapshot(),
        )
        self._messages.append(message)
        self._write(describe.message(message))

    # Commands that show a node's state

    def _raft_log(self, node: Node) -> None:
        first, last = node.storage.first_index(), node.storage.last_index()
        if last < first:
            self._write(f"log is empty: first index={first}, last index={last}")
        else:
            self._write(describe.entries(node.storage.entries(first, last + 1, NO_LIMIT)))

    def _raft_state(self, _case: Case) -> None:
        for node in self._nodes:
            status = node.raw.status()
            basic = status.basic
            voter = "(Voter)" if basic.id in status.config.voters.ids() else "(Non-Voter)"
            self._write(f"{basic.id}: {describe.ROLES[basic.role]} {voter} Term:{basic.term} Lead:{basic.leader_id}\n")

    def _status(self, case: Case) -> None:
        for id_, progress in self._first(case).raw.status().progress.items():
            self._write(f"{id_}: {progress}\n")

    # Messages and Readys

    def _deliver_msgs(self, case: Case) -> None:
        types = case.values("type")
        type_ = describe.message_type(types[-1]) if types else None
        if types and type_ is None:
            raise CommandError(f"unknown message type {types[-1]}")
        handled = 0
        for arg in case.args:
            if not arg.values:
                handled += self._deliver(int(arg.key), type_, drop=False)
            elif arg.key == "drop":
                handled += sum(self._deliver(int(id_), type_, drop=True) for id_ in arg.values)
        if not handled:
            self._write("no messages\n")

    def _deliver(self, to: int, type_: MessageType.ValueType | None, drop: bool) -> int:
        """Deliver, or drop, the messages of this type (None: of any type) to a node; returns how many there were."""
        mine = [m for m in self._messages if m.to == to and type_ in (None, m.type)]
        self._messages = [m for m in self._messages if not (m.to == to and type_ in (None, m.type))]
        for message in mine:
            self._write(("dropped: " if drop else "") + describe.message(message) + "\n")
            if drop:
                continue
            try:
                self._node(to).raw.step(message)
            except _RAFT_ERRORS as error:
                self._write(f"{ERRORS[type(error)]}\n")
        return len(mine)

    def _process_ready(self, case: Case) -> None:
        ids = [int(id_) for id_ in case.positional()]
        for id_ in ids:
            if len(ids) == 1:
                self._handle_ready(id_)
            else:
                self._write(f"> {id_} handling Ready\n")
                with self._indented():
                    self._handle_ready(id_)

    def _handle_ready(self, id_: int) -> None:
        node = self._node(id_)
        ready = node.raw.ready()
        self._write(describe.ready(ready))
        _persist(node.storage, ready)
        for entry in ready.committed_entries:
            _apply(node, entry)
        self._messages += [*ready.messages_at_once, *ready.messages]
        node.raw.advance(ready)

    def _stabilize(self, case: Case) -> None:
        level = self._level
        try:
            if case.values("log-level"):
                self._set_level(case.values("log-level")[-1])
            ids = [int(id_) for id_ in case.positional()] or list(range(1, len(self._nodes) + 1))
            while self._stabilize_round(ids):
                pass
        finally:
            self._level = level

    def _stabilize_round(self, ids: list[int]) -> bool:
        """Let these nodes handle their Readys, then their messages. Returns False if they had neither."""
        busy = False
        for id_ in ids:
            if self._node(id_).raw.has_ready():
                busy = True
                self._write(f"> {id_} handling Ready\n")
                with self._indented():
                    self._handle_ready(id_)
        for id_ in ids:
            if any(m.to == id_ for m in self._messages):
                busy = True
                self._write(f"> {id_} receiving messages\n")
                with self._indented():
                    self._deliver(id_, None, drop=False)
        return busy


def _persist(storage: HistoryStorage, ready: Ready) -> None:
    if ready.hard_state:
        storage.set_hard_state(ready.hard_state)
    if ready.snapshot:
        if ready.entries:
            raise CommandError("can't apply snapshot and entries at the same time")
        storage.apply_snapshot(ready.snapshot)
    else:
        storage.append(ready.entries)


def _apply(node: Node, entry: Entry) -> None:
    """Apply an entry. The state machine records the entry's data, or, if the entry is a configuration change, the
    change's context.
    """
    change = from_entry(entry)
    if change is None:
        node.storage.record(entry, entry.data)
        return
    state = node.raw.apply_conf_change(change)
    snapshot = node.storage.record(entry, change.context)
    snapshot.metadata.conf_state.CopyFrom(state)
