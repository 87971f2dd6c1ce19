"""Changes of the configuration, simple and joint, checked before they take effect.

Source: Ongaro's thesis, chapter 4; etcd/raft, package confchange.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from minka.v1.raft_pb2 import (
    CONF_CHANGE_ADD_LEARNER_NODE,
    CONF_CHANGE_ADD_NODE,
    CONF_CHANGE_REMOVE_NODE,
    CONF_CHANGE_TRANSITION_AUTO,
    CONF_CHANGE_TRANSITION_JOINT_EXPLICIT,
    CONF_CHANGE_UPDATE_NODE,
    ENTRY_CONF_CHANGE,
    ENTRY_CONF_CHANGE_V2,
    ConfChange,
    ConfChangeSingle,
    ConfChangeV2,
    ConfState,
    Entry,
)
from minkad.core.raft.quorum import JointConfig, MajorityConfig
from minkad.core.raft.tracker import Progress, ProgressTracker, TrackerConfig
from minkad.core.raft.types import NONE, RaftError

Changed = tuple[TrackerConfig, dict[int, Progress]]


class ConfChangeError(RaftError):
    """The change does not fit the active configuration."""


def as_v2(change: ConfChange | ConfChangeV2) -> ConfChangeV2:
    """The same change in the newer form."""
    if isinstance(change, ConfChangeV2):
        return change
    return ConfChangeV2(changes=[ConfChangeSingle(type=change.type, node_id=change.node_id)], context=change.context)


def to_entry(change: ConfChange | ConfChangeV2) -> Entry:
    """The log entry that proposes `change`."""
    type_ = ENTRY_CONF_CHANGE if isinstance(change, ConfChange) else ENTRY_CONF_CHANGE_V2
    return Entry(type=type_, data=change.SerializeToString())


def from_entry(entry: Entry) -> ConfChange | ConfChangeV2 | None:
    """The change that `entry` proposes; None if it proposes none."""
    if entry.type == ENTRY_CONF_CHANGE:
        return ConfChange.FromString(entry.data)
    if entry.type == ENTRY_CONF_CHANGE_V2:
        return ConfChangeV2.FromString(entry.data)
    return None


def leaves_joint(change: ConfChangeV2) -> bool:
    """True if `change` leaves the joint configuration."""
    return change.transition == CONF_CHANGE_TRANSITION_AUTO and not change.changes


def enters_joint(change: ConfChangeV2) -> bool:
    """True if `change` goes through a joint configuration."""
    return change.transition != CONF_CHANGE_TRANSITION_AUTO or len(change.changes) > 1


@dataclass(slots=True)
class _Draft:
    """A configuration while it is being changed: copies, so a refused change leaves no trace."""

    incoming: set[int]
    outgoing: set[int]
    learners: set[int]
    learners_next: set[int]
    auto_leave: bool
    progress: dict[int, Progress] = field(default_factory=dict)

    def checked(self) -> Changed:
        """The finished configuration, after a check of everything that must hold."""
        voters = JointConfig(MajorityConfig(self.incoming), MajorityConfig(self.outgoing))
        config = TrackerConfig(
            voters, MajorityConfig(self.learners), MajorityConfig(self.learners_next), self.auto_leave
        )
        check_invariants(config, self.progress)
        return config, self.progress


class Changer:
    """Works out the configuration that follows from `tracker`'s; changes nothing itself."""

    def __init__(self, tracker: ProgressTracker, last_index: int) -> None:
        self._tracker = tracker
        self._last_index = last_index

    def apply(self, change: ConfChangeV2) -> Changed:
        """The configuration after `change`, reached as `change` asks for. Raises ConfChangeError."""
        if leaves_joint(change):
            return self.leave_joint()
        if enters_joint(change):
            auto_leave = change.transition != CONF_CHANGE_TRANSITION_JOINT_EXPLICIT
            return self.enter_joint(auto_leave, change.changes)
        return self.simple(change.changes)

    def enter_joint(self, auto_leave: bool, changes: Iterable[ConfChangeSingle]) -> Changed:
        """From (1 2 3) to changed(1 2 3)&&(1 2 3). Raises ConfChangeError."""
        draft = self._draft()
        if draft.outgoing:
            raise ConfChangeError("config is already joint")
        if not draft.incoming:
            raise ConfChangeError("can't make a zero-voter config joint")
        draft.outgoing = set(draft.incoming)
        self._change(draft, changes)
        draft.auto_leave = auto_leave
        return draft.checked()

    def leave_joint(self) -> Changed:
        """From (1 2)&&(1 2 3) to (1 2); nodes in `learners_next` become learners. Raises ConfChangeError."""
        draft = self._draft()
        if not draft.outgoing:
            raise ConfChangeError("can't leave a non-joint config")
        for id_ in draft.learners_next:
            draft.learners.add(id_)
            draft.progress[id_].is_learner = True
        for id_ in draft.outgoing - draft.incoming - draft.learners:
            del draft.progress[id_]
        draft.learners_next, draft.outgoing, draft.auto_leave = set(), set(), False
        return draft.checked()

    def simple(self, changes: Iterable[ConfChangeSingle]) -> Changed:
        """Changes that add or remove at most one voter, without a joint configuration. Raises ConfChangeError."""
        draft = self._draft()
        if draft.outgoing:
            raise ConfChangeError("can't apply simple config change in joint config")
        self._change(draft, changes)
        if len(self._tracker.config.voters.incoming ^ draft.incoming) > 1:
            raise ConfChangeError("more than one voter changed without entering joint config")
        return draft.checked()

    def _draft(self) -> _Draft:
        config = self._tracker.config
        check_invariants(config, self._tracker.progress)
        # The window is shared with the original, which the result replaces.
        progress = {id_: replace(progress) for id_, progress in self._tracker.progress.items()}
        incoming, outgoing = config.voters
        return _Draft(
            set(incoming), set(outgoing), set(config.learners), set(config.learners_next), config.auto_leave, progress
        )

    def _change(self, draft: _Draft, changes: Iterable[ConfChangeSingle]) -> None:
        for change in changes:
            if change.node_id == NONE:  # the application has voided this change
                continue
            if change.type == CONF_CHANGE_ADD_NODE:
                self._make_voter(draft, change.node_id)
            elif change.type == CONF_CHANGE_ADD_LEARNER_NODE:
                self._make_learner(draft, change.node_id)
            elif change.type == CONF_CHANGE_REMOVE_NODE:
                _remove(draft, change.node_id)
            elif change.type != CONF_CHANGE_UPDATE_NODE:
                raise ConfChangeError(f"unexpected conf type {change.type}")
        if not draft.incoming:
            raise ConfChangeError("removed all voters")

    def _make_voter(self, draft: _Draft, id_: int) -> None:
        draft.learners.discard(id_)
        draft.learners_next.discard(id_)
        draft.incoming.add(id_)
        if id_ in draft.progress:
            draft.progress[id_].is_learner = False
        else:
            draft.progress[id_] = self._new_progress(is_learner=False)

    def _make_learner(self, draft: _Draft, id_: int) -> None:
        progress = draft.progress.get(id_)
        if progress is None:
            draft.learners.add(id_)
            draft.progress[id_] = self._new_progress(is_learner=True)
            return
        if progress.is_learner:
            return
        _remove(draft, id_)
        draft.progress[id_] = progress
        if id_ in draft.outgoing:  # a voter in the outgoing half until that is gone
            draft.learners_next.add(id_)
        else:
            progress.is_learner = True
            draft.learners.add(id_)

    def _new_progress(self, is_learner: bool) -> Progress:
        # Probing starts at the end of the log. The new node counts as heard. Otherwise the next check of the quorum
        # could make the leader step down before the node had a chance to answer.
        return Progress(
            next=max(self._last_index, 1),
            inflights=self._tracker.new_inflights(),
            recent_active=True,
            is_learner=is_learner,
        )


def _remove(draft: _Draft, id_: int) -> None:
    if id_ not in draft.progress:
        return
    draft.incoming.discard(id_)
    draft.learners.discard(id_)
    draft.learners_next.discard(id_)
    if id_ not in draft.outgoing:
        del draft.progress[id_]


def check_invariants(config: TrackerConfig, progress: dict[int, Progress]) -> None:
    """Assert what holds for every configuration."""
    incoming, outgoing = config.voters
    missing = (incoming | outgoing | config.learners | config.learners_next) - progress.keys()
    assert not missing, f"no progress for {sorted(missing)}"
    assert config.learners_next <= outgoing, "nodes in learners_next are voters of the outgoing half"
    assert not config.learners & (incoming | outgoing), "voters and learners do not overlap"
    for id_, one in progress.items():
        assert one.is_learner == (id_ in config.learners), f"{id_}: is_learner does not fit the configuration"
    if not config.joint:
        assert not config.learners_next, "nobody waits outside of a joint configuration"
        assert not config.auto_leave, "only a joint configuration is left"


def restore(tracker: ProgressTracker, last_index: int, state: ConfState) -> Changed:
    """The configuration that `state` describes; `tracker` must be empty. Raises ConfChangeError."""
    work = ProgressTracker(tracker.max_inflight, tracker.max_inflight_bytes)
    changer = Changer(work, last_index)
    incoming = [
        *(ConfChangeSingle(type=CONF_CHANGE_ADD_NODE, node_id=id_) for id_ in state.voters),
        *(ConfChangeSingle(type=CONF_CHANGE_ADD_LEARNER_NODE, node_id=id_) for id_ in state.learners),
        *(ConfChangeSingle(type=CONF_CHANGE_ADD_LEARNER_NODE, node_id=id_) for id_ in state.learners_next),
    ]
    if not state.voters_outgoing:
        for change in incoming:
            work.switch(*changer.simple([change]))
        return work.config, work.progress
    # First build the outgoing half, then enter the joint configuration by replacing all of it.
    for id_ in state.voters_outgoing:
        work.switch(*changer.simple([ConfChangeSingle(type=CONF_CHANGE_ADD_NODE, node_id=id_)]))
    leaving = [ConfChangeSingle(type=CONF_CHANGE_REMOVE_NODE, node_id=id_) for id_ in state.voters_outgoing]
    return changer.enter_joint(state.auto_leave, [*leaving, *incoming])
