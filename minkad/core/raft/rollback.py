"""Compares a leader's messages with the entries committed here. Every leader of a later term has committed entries in
its log (Raft, section 5.4), unless most voters have lost them, such as by older copies of their data directories.

Late or repeated messages prove the same: within its term a leader's log only grows.
"""

from minka.v1.raft_pb2 import Message
from minkad.core.raft.log import RaftLog
from minkad.core.raft.types import QuorumRolledBack

_PAGE_BYTES = 1 << 20


def check_entry(log: RaftLog, index: int, term: int) -> None:
    """The leader has the entry (index, term). Raises QuorumRolledBack if it can't have the entries committed here."""
    committed = log.committed
    mine = log.term_or_zero(min(index, committed))
    # Terms never fall along a log: entries after the committed ones have at least the term of these.
    fits = mine <= term if index > committed else mine in (0, term)  # 0: it is compacted
    if not fits:
        text = f"entries up to {committed} are committed here, number {min(index, committed)} in term {mine}"
        raise QuorumRolledBack(f"{text}, and the leader has entry {index} of term {term}")


def check_append(log: RaftLog, m: Message) -> None:
    """The leader sends entries. Raises QuorumRolledBack if it can't have the entries committed here.

    Nodes that have forgotten a term can use its number again. So the entries in the message are compared, too.
    """
    check_entry(log, m.index, m.log_term)
    if m.log_crc and log.match_term(m.index, m.log_term) and log.crc_or_zero(m.index) not in (0, m.log_crc):
        raise _another(m.index, m.log_term)
    if not m.entries:
        return
    first, last = max(m.index + 1, log.first_index()), min(log.committed, m.entries[-1].index)
    own = log.scan(first, last + 1, _PAGE_BYTES)
    for mine, theirs in zip(own, m.entries[first - m.index - 1 :], strict=False):
        if mine != theirs:
            raise _another(mine.index, mine.term)


def _another(index: int, term: int) -> QuorumRolledBack:
    return QuorumRolledBack(f"the leader has another entry {index} than the one of term {term} here")
