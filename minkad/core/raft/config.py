"""The settings of one node of a Raft group."""

from collections.abc import Callable
from dataclasses import dataclass

from minkad.core.raft.storage import Storage
from minkad.core.raft.types import NONE, Log, ReadOnlyOption

MIB = 1 << 20


def _silent(_level: str, _text: str) -> None:
    """Log nothing."""


@dataclass(slots=True)
class Config:
    """Times are in ticks, sizes in bytes; NO_LIMIT lifts a limit on bytes.

    A node campaigns when it has not heard from a leader for [election_tick, 2 · election_tick) ticks, drawn again for
    each term from `random`, which returns a number in [0, n).
    """

    id: int
    storage: Storage
    random: Callable[[int], int]
    election_tick: int = 10
    heartbeat_tick: int = 1
    # A heartbeat goes to a quarter of the learners in turn, and to at most this number; a read asks only voters. 0:
    # both go to all, as in etcd/raft, which would be most of the work of a leader with 1,000 learners.
    learners_a_beat: int = 0
    applied: int = 0  # on a restart: the last index applied; entries up to it aren't handed out again
    max_size_per_msg: int = MIB  # entries in one MSG_APP, encoded; at least one goes
    max_committed_size_per_ready: int = 16 * MIB  # committed entries under way to the application, encoded
    max_uncommitted_entries_size: int = 64 * MIB  # payload in the leader's uncommitted log; beyond it proposals drop
    max_inflight_msgs: int = 256  # MSG_APPs to one node without an answer
    max_inflight_bytes: int = 64 * MIB  # their payload
    check_quorum: bool = True  # a leader that hears no quorum for an election timeout steps down; followers that
    # have just heard their leader refuse to vote
    pre_vote: bool = True  # before a higher term disturbs a leader, ask if an election could be won
    read_only_option: ReadOnlyOption = ReadOnlyOption.SAFE
    disable_proposal_forwarding: bool = False  # a follower drops proposals instead of passing them on
    disable_conf_change_validation: bool = False  # the caller serializes configuration changes itself
    commit_by_vote: bool = False  # votes say what is committed; otherwise an election can be stuck while voters
    # change (etcd issue 12359); raft-rs does this, etcd/raft does not
    step_down_on_removal: bool = True  # a leader that is removed or made a learner becomes a follower
    logger: Log | None = None

    def validate(self) -> None:
        """Raises ValueError for a setting that is out of its range, or contradicts another one."""
        for wrong, text in (
            (self.id == NONE, "id must not be 0"),
            (self.heartbeat_tick <= 0, "heartbeat_tick must be greater than 0"),
            (self.learners_a_beat < 0, "learners_a_beat must not be negative"),
            (self.election_tick <= self.heartbeat_tick, "election_tick must be greater than heartbeat_tick"),
            (self.max_size_per_msg < 0, "max_size_per_msg must not be negative"),
            (self.max_committed_size_per_ready <= 0, "max_committed_size_per_ready must be greater than 0"),
            (self.max_uncommitted_entries_size <= 0, "max_uncommitted_entries_size must be greater than 0"),
            (self.max_inflight_msgs <= 0, "max_inflight_msgs must be greater than 0"),
            (self.max_inflight_bytes < self.max_size_per_msg, "max_inflight_bytes must be at least max_size_per_msg"),
            (
                self.read_only_option is ReadOnlyOption.LEASE_BASED and not self.check_quorum,
                "lease-based reads need check_quorum",
            ),
        ):
            if wrong:
                raise ValueError(text)

    def log(self) -> Log:
        """The function that log lines go to."""
        return self.logger or _silent
