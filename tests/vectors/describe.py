"""Describes entries, messages, states and Readys in the words of the traces."""

from collections.abc import Iterable, Iterator

from minka.v1.raft_pb2 import (
    CONF_CHANGE_ADD_LEARNER_NODE,
    CONF_CHANGE_ADD_NODE,
    CONF_CHANGE_REMOVE_NODE,
    CONF_CHANGE_UPDATE_NODE,
    ConfChange,
    ConfChangeSingle,
    ConfState,
    Entry,
    EntryType,
    HardState,
    Message,
    MessageType,
    Snapshot,
)
from minkad.core.raft import Ready, Role, from_entry

ROLES = {
    Role.FOLLOWER: "StateFollower",
    Role.CANDIDATE: "StateCandidate",
    Role.LEADER: "StateLeader",
    Role.PRE_CANDIDATE: "StatePreCandidate",
}
CHANGE_LETTERS = {
    "v": CONF_CHANGE_ADD_NODE,
    "l": CONF_CHANGE_ADD_LEARNER_NODE,
    "r": CONF_CHANGE_REMOVE_NODE,
    "u": CONF_CHANGE_UPDATE_NODE,
}
_LETTER_OF = {type_: letter for letter, type_ in CHANGE_LETTERS.items()}
_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\"}


def camel(name: str) -> str:
    """Convert a name from Minka's form to that of the traces: MSG_APP_RESP becomes MsgAppResp."""
    return "".join(word.capitalize() for word in name.split("_"))


def message_type(name: str) -> MessageType.ValueType | None:
    """The type that the traces call `name`; None if there is none."""
    return next((value for key, value in MessageType.items() if camel(key) == name), None)


def quote(data: bytes) -> str:
    r"""Quote a text as Go's %q does: in double quotes, with escapes, and with \x for bytes that aren't UTF-8."""
    text = data.decode("utf-8", "surrogateescape")
    return '"' + "".join(_quote_char(char) for char in text) + '"'


def _quote_char(char: str) -> str:
    code = ord(char)
    if char == '"':
        return '\\"'
    if char in _ESCAPES:
        return _ESCAPES[char]
    if 0xDC80 <= code <= 0xDCFF:  # a byte that isn't UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if char.isprintable():
        return char
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def conf_changes(changes: Iterable[ConfChangeSingle]) -> str:
    """Describe changes, for example `v1 l2 r3`."""
    return " ".join(f"{_LETTER_OF.get(change.type, 'unknown')}{change.node_id}" for change in changes)


def entry(e: Entry) -> str:
    """Describe an entry: its term, index, type and content."""
    change = from_entry(e)
    if change is None:
        content = quote(e.data)
    elif isinstance(change, ConfChange):
        content = conf_changes([ConfChangeSingle(type=change.type, node_id=change.node_id)])
    else:
        content = conf_changes(change.changes)
    return f"{e.term}/{e.index} {camel(EntryType.Name(e.type))}" + (f" {content}" if content else "")


def entries(es: Iterable[Entry]) -> str:
    """Describe entries, each in a line of its own."""
    return "".join(f"{entry(e)}\n" for e in es)


def node(id_: int) -> str:
    """Describe a node: its id in hexadecimal, or None."""
    return f"{id_:x}" if id_ else "None"


def message(m: Message) -> str:
    """Describe a message in one line, or in several if it has many entries or a snapshot."""
    return "".join(_message_parts(m))


def _message_parts(m: Message) -> Iterator[str]:
    yield f"{node(m.from_id)}->{node(m.to)} {camel(MessageType.Name(m.type))} Term:{m.term} Log:{m.log_term}/{m.index}"
    if m.reject:
        yield f" Rejected (Hint: {m.reject_hint})"
    if m.commit:
        yield f" Commit:{m.commit}"
    if m.vote:
        yield f" Vote:{m.vote}"
    if len(m.entries) == 1:
        yield f" Entries:[{entry(m.entries[0])}]"
    elif m.entries:
        yield " Entries:[" + "".join(f"\n  {entry(e)}" for e in m.entries) + "\n]"
    if m.snapshot.metadata.index:
        yield f"\n  Snapshot: {snapshot(m.snapshot)}"


def _ids(ids: Iterable[int]) -> str:
    return f"[{' '.join(map(str, ids))}]"


def conf_state(state: ConfState) -> str:
    """Describe a configuration: its voters and learners."""
    return (
        f"Voters:{_ids(state.voters)} VotersOutgoing:{_ids(state.voters_outgoing)} Learners:{_ids(state.learners)} "
        f"LearnersNext:{_ids(state.learners_next)} AutoLeave:{str(state.auto_leave).lower()}"
    )


def snapshot(s: Snapshot) -> str:
    """Describe a snapshot: its index, term and configuration."""
    return f"Index:{s.metadata.index} Term:{s.metadata.term} ConfState:{conf_state(s.metadata.conf_state)}"


def hard_state(state: HardState) -> str:
    """Describe a hard state: its term, its vote if there is one, and its commit index."""
    vote = f" Vote:{state.vote}" if state.vote else ""
    return f"Term:{state.term}{vote} Commit:{state.commit}"


def ready(rd: Ready) -> str:
    """Describe a Ready with all its parts."""
    body = "".join(_ready_parts(rd))
    return f"Ready MustSync={str(rd.must_sync).lower()}:\n{body}" if body else "<empty Ready>"


def _ready_parts(rd: Ready) -> Iterator[str]:
    if rd.soft_state:
        yield f"Lead:{rd.soft_state.leader_id} State:{ROLES[rd.soft_state.role]}\n"
    if rd.hard_state:
        yield f"HardState {hard_state(rd.hard_state)}\n"
    if rd.read_states:
        states = (f"{{{state.index} {_ids(state.context)}}}" for state in rd.read_states)
        yield f"ReadStates [{' '.join(states)}]\n"
    if rd.entries:
        yield "Entries:\n" + entries(rd.entries)
    if rd.snapshot:
        yield f"Snapshot {snapshot(rd.snapshot)}\n"
    if rd.committed_entries:
        yield "CommittedEntries:\n" + entries(rd.committed_entries)
    if rd.messages_at_once or rd.messages:
        yield "Messages:\n" + "".join(f"{message(m)}\n" for m in (*rd.messages_at_once, *rd.messages))
