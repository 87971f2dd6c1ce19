"""Checks of the rules for a Raft group as a whole, at every step of each node.

Source: Raft, figure 3 (election safety, leader append-only, log matching, leader completeness, state machine
safety).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from minka.v1.raft_pb2 import (
    MSG_APP_RESP,
    MSG_PRE_VOTE,
    MSG_PRE_VOTE_RESP,
    MSG_VOTE_RESP,
    ConfState,
    Entry,
    HardState,
    Message,
)
from minkad.core.raft import NONE, Role
from minkad.core.raft.raft import Raft
from tests.simulation.disk import RaftDisk
from tests.simulation.trace import Violation

_FUTURE_TERMS: Final = (MSG_PRE_VOTE, MSG_PRE_VOTE_RESP)  # the term of these messages may be newer than the sender's

_Seen = tuple[int, int, int, Role]  # term, vote, commit, role
_Content = tuple[int, int, bytes]  # of an entry: the term of the entry before it, its type, its data


class RaftOracle:
    """Checks every step of every node, every message and every entry. Its methods raise Violation.

    The group begins with a snapshot at `bootstrap_index`, in term 1. If `disks` has each node's disk, the oracle also
    checks that leaders commit only entries that are on the disks of a quorum. For this check, the configuration must
    not change between a commit and the next `observe`.
    """

    def __init__(self, bootstrap_index: int = 1, disks: Mapping[int, RaftDisk] | None = None) -> None:
        self._disks = disks
        self.leaders: dict[int, int] = {}  # by term: the node that leads
        self.terms: list[int] = [1] * (bootstrap_index + 1)  # the terms of the committed entries, by index
        self._committed_in: list[int] = [1] * (bootstrap_index + 1)  # by index: the term of its first commit
        self._entries: dict[tuple[int, int], _Content] = {}  # by index and term of the entry
        self._seen: dict[int, _Seen] = {}
        self._promised: dict[int, int] = {}  # by node: the newest term in its messages, pre-votes left out
        self._votes: dict[tuple[int, int], int] = {}  # by node and term: the candidate to which it has sent its vote
        self._acknowledged: dict[int, tuple[int, int]] = {}  # by node: the last acknowledgement's term and index
        self._states: dict[int, int] = {}  # by applied index: the digest of the state
        self._configurations: list[tuple[int, bytes]] = []  # each configuration's first index, and its encoding

    @property
    def committed(self) -> int:
        """The highest index that any node has committed."""
        return len(self.terms) - 1

    def data(self, index: int) -> bytes:
        """The committed entry's data."""
        return self._entries[index, self.terms[index]][2]

    # Nodes

    def restarted(self, id_: int, state: HardState, last_index: int) -> None:
        """Check the state with which a node has restarted: the state must keep the promises in the node's earlier
        messages.
        """
        promised = self._promised.get(id_, 0)
        if state.term < promised:
            raise Violation("term is monotonic", f"node {id_} sent term {promised}, but restarts in term {state.term}")
        vote = self._votes.get((id_, state.term), NONE)
        if vote not in (NONE, state.vote):
            raise Violation(
                "vote is kept", f"node {id_} voted for {vote} in term {state.term}, but restarts with vote {state.vote}"
            )
        term, acknowledged = self._acknowledged.get(id_, (0, 0))
        if term == state.term and last_index < acknowledged:
            raise Violation(
                "nothing acknowledged is lost",
                f"node {id_} has told the leader of term {term} that it has entry {acknowledged}; its log now ends at "
                f"{last_index}",
            )
        self._seen.pop(id_, None)

    def observe(self, raft: Raft) -> None:
        """Check a node's Raft core after a step."""
        log = raft.raft_log
        # Only a snapshot from the leader may replace unapplied entries.
        if log.unstable.snapshot is None and log.first_index() > log.applied + 1:
            raise Violation(
                "the log keeps entries that are not applied",
                f"node {raft.id} has applied entries up to {log.applied}, but its log begins at {log.first_index()}",
            )
        now = (raft.term, raft.vote, log.committed, raft.role)
        before = self._seen.get(raft.id)
        if now == before:
            return
        self._seen[raft.id] = now
        if before is not None:
            self._check_monotonic(raft.id, before, now)
        if raft.role is Role.LEADER and (before is None or before[0] != raft.term or before[3] is not Role.LEADER):
            self._check_leader(raft)
        if before is None or before[2] != log.committed:
            self._check_committed(raft, log.first_index() if before is None else before[2] + 1)
            if self._disks is not None:
                self._check_quorum(raft, self._disks)

    def _check_quorum(self, raft: Raft, disks: Mapping[int, RaftDisk]) -> None:
        index, voters = raft.raft_log.committed, raft.tracker.config.voters
        if raft.role is not Role.LEADER or raft.raft_log.term_or_zero(index) != raft.term:
            return  # another leader has committed this entry
        having = {id_: disks[id_].has(index, raft.term) for id_ in (*voters.incoming, *voters.outgoing)}
        # The oracle counts again, since the code's own count may be wrong.
        if any(half and 2 * sum(having[id_] for id_ in half) <= len(half) for half in voters):
            raise Violation(
                "committed entries are on the disks of a quorum",
                f"node {raft.id} leads term {raft.term} and commits entry {index} with {voters}; durable by "
                f"node: {having}",
            )

    def _check_monotonic(self, id_: int, before: _Seen, now: _Seen) -> None:
        if now[0] < before[0]:
            raise Violation("term is monotonic", f"node {id_} went from term {before[0]} to {now[0]}")
        if now[0] == before[0] and before[1] not in (NONE, now[1]):
            raise Violation("vote is kept", f"node {id_} in term {now[0]} voted for {before[1]}, then for {now[1]}")
        if now[2] < before[2]:
            raise Violation("commit is monotonic", f"node {id_} went from commit index {before[2]} to {now[2]}")

    def _check_leader(self, raft: Raft) -> None:
        other = self.leaders.setdefault(raft.term, raft.id)
        if other != raft.id:
            raise Violation("one leader a term", f"{other} and {raft.id} both lead term {raft.term}")
        # Every leader must have all entries that were committed before the leader's term. Since logs match, it is
        # enough to check the last of these entries.
        index = bisect_left(self._committed_in, raft.term) - 1
        log = raft.raft_log
        if index >= log.first_index() and log.term_or_zero(index) != self.terms[index]:
            raise Violation(
                "leader completeness",
                f"node {raft.id} leads term {raft.term} without entry {index} of term {self.terms[index]}, which was "
                f"committed in term {self._committed_in[index]}; its log ends at {log.last_entry()}",
            )

    def _check_committed(self, raft: Raft, first: int) -> None:
        log = raft.raft_log
        for index in range(max(first, log.first_index() - 1), log.committed + 1):
            term = log.term(index)
            if index == len(self.terms):
                self.terms.append(term)
                self._committed_in.append(max(raft.term, self._committed_in[-1]))
            elif index > len(self.terms):
                raise Violation(
                    "state machine safety", f"node {raft.id} has committed {index}, but no node the entry before"
                )
            elif term != self.terms[index]:
                raise Violation(
                    "state machine safety",
                    f"entry {index} was committed with term {self.terms[index]}, but at node {raft.id} with "
                    f"term {term}",
                )

    # Messages, entries, state

    def sent(self, message: Message, disk: RaftDisk) -> None:
        """Check a message that a node with this disk sends."""
        sender, term, type_ = message.from_id, message.term, message.type
        if type_ in _FUTURE_TERMS or not term:
            return
        _check_durable(message, disk)
        if term > self._promised.get(sender, 0):
            self._promised[sender] = term
        if message.reject:
            return
        if type_ == MSG_APP_RESP:
            self._acknowledged[sender] = max((term, message.index), self._acknowledged.get(sender, (0, 0)))
        elif type_ == MSG_VOTE_RESP:
            other = self._votes.setdefault((sender, term), message.to)
            if other != message.to:
                raise Violation("one vote a term", f"node {sender} votes in term {term} for {other} and {message.to}")

    def appended(self, id_: int, entries: Sequence[Entry], term_before: int) -> None:
        """Check entries that a node appends to its log; the entry before them has the term `term_before`."""
        for entry in entries:
            index, term = entry.index, entry.term
            content = (term_before, entry.type, entry.data)
            other = self._entries.setdefault((index, term), content)
            if other != content:
                raise Violation(
                    "log matching",
                    f"entry {index} of term {term} is {content[2][:20]!r} after term {content[0]} at node {id_}, but "
                    f"{other[2][:20]!r} after term {other[0]} elsewhere",
                )
            term_before = term

    def applied(self, id_: int, index: int, state: int) -> None:
        """Check `state`, the digest of a node's state after the entry at `index`."""
        if index > self.committed:
            raise Violation(
                "state machine safety", f"node {id_} applies entry {index}, but only {self.committed} are committed"
            )
        other = self._states.setdefault(index, state)
        if other != state:
            raise Violation("equal states", f"after entry {index}, the state of node {id_} differs from another node's")

    def configured(self, id_: int, index: int, conf_state: ConfState, *, changed: bool) -> None:
        """Check the configuration of a node that has applied all entries up to `index`. `changed` is true if the entry
        at `index` has set this configuration.
        """
        conf, known = conf_state.SerializeToString(deterministic=True), self._configurations
        if changed and (not known or index > known[-1][0]):
            known.append((index, conf))
        position = bisect_right(known, index, key=lambda entry: entry[0]) - 1
        if position >= 0 and known[position][1] != conf:
            raise Violation(
                "equal configurations",
                f"after entry {index}, the configuration of node {id_} differs from another node's",
            )


def _check_durable(message: Message, disk: RaftDisk) -> None:
    """Check that the promise in the message is already on the sender's disk, so that a crash can't break it. Raises
    Violation.
    """
    said, type_ = f"node {message.from_id} tells {message.to}", message.type
    state, term = disk.durable_state, message.term
    if term > state.term:
        raise Violation(
            "a node says only what is durable", f"{said} of its term {term}, but its disk has term {state.term}"
        )
    if message.reject or term < state.term:  # in a refusal or in an older term, the sender promises nothing
        return
    if type_ == MSG_VOTE_RESP and message.to != state.vote:
        raise Violation(
            "a node says only what is durable", f"{said} of its vote in term {term}, but its disk has {state}"
        )
    if type_ == MSG_APP_RESP and message.index > disk.durable_last:
        raise Violation(
            "a node says only what is durable",
            f"{said} of entry {message.index}, but its disk ends at {disk.durable_last}",
        )
