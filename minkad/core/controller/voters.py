"""Chooses the voters: brings the Raft configuration to its target, by one safe change at a time."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Node, NodeState
from minka.v1.raft_pb2 import ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState
from minkad.core.controller.seats import READY_SHARE, Seats

MAX_VOTERS: Final = 9


@dataclass(frozen=True, slots=True)
class VoterSettings:
    """The settings of the choice of voters."""

    voters: int  # the wanted number
    # A learner replaces a voter that was gone for this long. A seat moves to another zone only after its new node was
    # LIVE for this long.
    replace_after_ms: int


def next_membership_change(
    conf: ConfState,
    nodes: Collection[Node],
    match: Mapping[int, int],
    leader: int,
    settings: VoterSettings,
    now_ms: int,
) -> ConfChangeV2 | None:
    """The next change of the Raft configuration; None if it is right, or while a change is under way.

    A removed node stops being a member. Every LIVE node gets the log: if it isn't a member, it becomes a learner. While
    there are fewer voters than wanted, the best LIVE learner is promoted: one in a zone with few voters. A voter that
    has been gone for `replace_after_ms` is replaced by the best LIVE learner and becomes a learner itself, in one joint
    change. So is a voter whose seat is to be in another zone (`Seats`). `match`: by raft id, the index up to which each
    member has the log of `leader`.
    """
    if conf.voters_outgoing or not nodes:  # no nodes: the cluster is not created yet
        return None
    members = {*conf.voters, *conf.learners}
    for raft_id in sorted(members - {n.raft_id for n in nodes}):
        return _change((ConfChangeType.CONF_CHANGE_REMOVE_NODE, raft_id))
    live = {n.raft_id: n for n in nodes if n.state == NodeState.NODE_STATE_LIVE}
    for raft_id in sorted(live.keys() - members):
        return _change((ConfChangeType.CONF_CHANGE_ADD_LEARNER_NODE, raft_id))
    seats = Seats(conf, nodes, match)
    if len(conf.voters) < settings.voters and (best := seats.best()) is not None:
        return _change((ConfChangeType.CONF_CHANGE_ADD_NODE, best))
    gone = [
        n.raft_id
        for n in nodes
        if n.raft_id in conf.voters
        and n.state in (NodeState.NODE_STATE_FAILED, NodeState.NODE_STATE_LEFT)
        and now_ms - n.state_since_ms >= settings.replace_after_ms
    ]
    for voter in sorted(gone)[:1]:
        if (best := seats.best(instead_of=voter)) is not None:
            return _exchange(best, voter)
    move = seats.move(leader, now_ms - settings.replace_after_ms)
    return _exchange(move.promote, move.demote) if move is not None else None


def change_voters(
    conf: ConfState,
    nodes: Mapping[str, Node],
    match: Mapping[int, int],
    leader: int,
    settings: VoterSettings,
    promote: Sequence[str],
    demote: Sequence[str],
) -> ConfChangeV2 | None:
    """The change that a person asks for, as one joint change; None if the voters are already as asked.

    `nodes` by id, `match` and `leader` by raft id. It never lowers the number of voters below `settings.voters`:
    `next_membership_change` would promote a learner at once, perhaps the demoted node. Nor does it give a zone two
    voters more than another zone that could have one: a seat would move back. Raises UNKNOWN_NODE, INVALID_VOTERS with
    the reason, and VOTERS_CHANGING while a joint change is under way.
    """
    named = [*promote, *demote]
    if not named or len(set(named)) != len(named):
        raise MinkaError(Code.INVALID_ARGUMENT, "name a node to promote or to demote, and each of them once")
    for name in named:
        if name not in nodes:
            raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {name}", node=name)
    voters = set(conf.voters)
    up = [nodes[node] for node in promote if nodes[node].raft_id not in voters]
    down = [nodes[node] for node in demote if nodes[node].raft_id in voters]
    if not up and not down:
        return None
    if conf.voters_outgoing:
        raise MinkaError(Code.VOTERS_CHANGING, "a joint change of the voters is under way")
    for node in up:
        _check_promotable(node, conf, match, leader)
    if any(node.raft_id == leader for node in down):
        raise _invalid("the node leads the coordinator: transfer the leadership first", demote)
    left = len(voters) + len(up) - len(down)
    if left > MAX_VOTERS:
        raise _invalid(f"there would be {left} voters; {MAX_VOTERS} are possible", promote)
    if left < len(voters) and left < settings.voters:
        raise _invalid(
            f"{left} voters would be left, and coordinator.voters is {settings.voters}: promote a learner instead of "
            f"{down[0].id}",
            demote,
        )
    _check_zones(conf, nodes, match, leader, up, down)
    return _change(
        *((ConfChangeType.CONF_CHANGE_ADD_NODE, node.raft_id) for node in up),
        *((ConfChangeType.CONF_CHANGE_ADD_LEARNER_NODE, node.raft_id) for node in down),
    )


def _check_promotable(node: Node, conf: ConfState, match: Mapping[int, int], leader: int) -> None:
    if node.state != NodeState.NODE_STATE_LIVE:
        raise _invalid(f"{node.id} is not LIVE", [node.id])
    if node.raft_id not in conf.learners:
        raise _invalid(f"{node.id} does not have the log yet: it is not a learner", [node.id])
    has, of = match.get(node.raft_id, 0), match.get(leader, 0)
    if has < READY_SHARE * of:
        raise _invalid(f"{node.id} has {has} of {of} entries of the log: it has to catch up first", [node.id])


def _check_zones(
    conf: ConfState,
    nodes: Mapping[str, Node],
    match: Mapping[int, int],
    leader: int,
    up: Sequence[Node],
    down: Sequence[Node],
) -> None:
    """Refuse a change that would be undone automatically, by a move of a seat that isn't due without the change."""
    adds, drops = {node.raft_id for node in up}, {node.raft_id for node in down}
    after = ConfState(
        voters=[v for v in conf.voters if v not in drops] + sorted(adds),
        learners=[v for v in conf.learners if v not in adds] + sorted(drops),
    )
    move = Seats(after, nodes.values(), match).move(leader)
    if move is None or Seats(conf, nodes.values(), match).move(leader) is not None:
        return
    by_id = {node.raft_id: node for node in nodes.values()}
    promote, demote = by_id[move.promote], by_id[move.demote]
    raise _invalid(
        f"zone {demote.zone or '-'} would have two voters more than zone {promote.zone or '-'}, where {promote.id} is "
        f"LIVE, and its seat would move back: choose nodes of other zones, or drain {promote.id} first",
        [promote.id],
    )


def check_transfer(conf: ConfState, nodes: Mapping[str, Node], node_id: str) -> int:
    """The raft id of the voter that is to lead. Raises UNKNOWN_NODE, INVALID_VOTERS."""
    node = nodes.get(node_id)
    if node is None:
        raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {node_id}", node=node_id)
    if node.raft_id not in conf.voters:
        raise _invalid(f"{node_id} is a learner, and only a voter can lead: promote it first", [node_id])
    if node.state != NodeState.NODE_STATE_LIVE:
        raise _invalid(f"{node_id} is not LIVE, so it can't lead", [node_id])
    return node.raft_id


def _invalid(message: str, nodes: Sequence[str]) -> MinkaError:
    return MinkaError(Code.INVALID_VOTERS, message, node=",".join(nodes))


def _exchange(promote: int, demote: int) -> ConfChangeV2:
    """The joint change by which a learner takes a voter's seat."""
    return _change(
        (ConfChangeType.CONF_CHANGE_ADD_NODE, promote), (ConfChangeType.CONF_CHANGE_ADD_LEARNER_NODE, demote)
    )


def _change(*singles: tuple[ConfChangeType.ValueType, int]) -> ConfChangeV2:
    return ConfChangeV2(changes=[ConfChangeSingle(type=kind, node_id=raft_id) for kind, raft_id in singles])
