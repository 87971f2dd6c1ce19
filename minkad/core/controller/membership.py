"""Nodes register, leave gracefully and fail (Fixed Partitions: "Tracking Cluster Membership")."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import RemoveNodeRequest, RemoveNodeResponse
from minka.v1.cluster_pb2 import Cluster, Node, NodeState
from minka.v1.coordinator_pb2 import LeaveRequest, LeaveResponse, RegisterResponse
from minka.v1.records_pb2 import Record
from minkad.core.controller.decision import OwnCommand, Steps, one_by_one
from minkad.core.controller.drains import running_drain
from minkad.core.controller.node_events import on_node_failure, on_node_startup, on_process_end
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import node_in_state, partitions_changed
from minkad.core.state import State, is_up


@dataclass(frozen=True, slots=True)
class CreateCluster(OwnCommand):
    """The first active controller of a new cluster records the cluster of its configuration."""

    cluster: Cluster
    voters: Sequence[Node]


def create_cluster(state: State, command: CreateCluster, now_ms: int) -> Steps[None]:
    """Record the cluster and its bootstrap voters, which have yet to register."""
    if not state.cluster.id:
        yield [Record(cluster_created=command.cluster), *(Record(node_changed=node) for node in command.voters)]


@dataclass(frozen=True, slots=True)
class Register(OwnCommand):
    """A process registers. `holder_alive`: the process that is registered with this node id may hold a clearance.
    `log_unchecked`: the node is a member of the Raft group, and no leader has yet checked that its log is whole.
    """

    node: Node
    holder_alive: bool
    log_unchecked: bool = False


def register(state: State, command: Register, now_ms: int) -> Steps[RegisterResponse]:
    """Make this process the node's present one. Then the node leads and follows its partitions again."""
    old, node = _predecessor(state, command), command.node
    if old is None or old.incarnation != node.incarnation:
        yield from one_by_one(_registered(state, command, old, now_ms))
    return RegisterResponse(cluster_id=state.cluster.id, raft_id=state.nodes[node.id].raft_id)


def _registered(state: State, command: Register, old: Node | None, now_ms: int) -> Iterator[Record]:
    node = command.node
    if old is not None:
        # An older copy of the data directory must not register: if the newest copy starts later, it has the same number
        # of starts, and would be refused. But a node that has moved must register first, so the leader can reach it.
        if command.log_unchecked and old.address == node.address:
            raise MinkaError(Code.LOG_UNCHECKED, f"the Raft log of node {node.id} has not been found whole yet")
        yield from _replaced(state, old, now_ms)
    row = Node()
    row.CopyFrom(node)
    row.raft_id = old.raft_id if old is not None else state.next_raft_id
    reason = "registered for the first time" if old is None or not old.data_id else "registered again"
    # A drain outlives the process; a controlled shutdown ends with the process that began it.
    draining = running_drain(state, node.id) is not None
    now = NodeState.NODE_STATE_DRAINING if draining else NodeState.NODE_STATE_LIVE
    yield node_in_state(row, now, reason, now_ms, emptied=draining)
    yield from on_node_startup(state, node.id)


def _replaced(state: State, old: Node, now_ms: int) -> Iterator[Record]:
    """The records that end the previous process. From the first of them on, it gets no clearance."""
    rows = on_process_end(state, old.id)
    first = next(rows, None)
    if first is not None:
        if is_up(old):
            yield node_in_state(old, NodeState.NODE_STATE_FAILED, "another process of the node registers", now_ms)
        yield first
        yield from rows


def _predecessor(state: State, command: Register) -> Node | None:
    """The node's row before the registration; None for a new node. Raises the refusal of the registration."""
    node, old = command.node, state.nodes.get(command.node.id)
    if not state.cluster.id:  # the raft ids of the first voters are not in the table yet
        raise MinkaError(Code.NO_CONTROLLER, "the cluster is about to be founded")
    if node.data_id in state.removed_data_ids:
        raise MinkaError(
            Code.NODE_REMOVED, f"node {node.id} was removed from the cluster with its data directory", node=node.id
        )
    if old is not None:
        live = is_up(old)
        if not live and old.incarnation == node.incarnation:
            raise MinkaError(
                Code.NOT_REGISTERED,
                f"{old.state_reason}: others may lead what node {node.id} led; it has to register as a new process",
                node=node.id,
            )
        if old.incarnation != node.incarnation:
            _refuse_impostor(old, command, live)
    return old


def _refuse_impostor(old: Node, command: Register, live: bool) -> None:
    node = command.node
    if live and command.holder_alive:
        raise MinkaError(
            Code.NODE_ID_TAKEN,
            f"node {node.id} is live at {old.address}; the process at {node.address} can't have its id",
            node=node.id,
            holder=old.address,
            same_data=str(old.data_id == node.data_id).lower(),
        )
    if old.data_id and old.data_id != node.data_id:
        raise MinkaError(
            Code.WRONG_DATA_DIRECTORY,
            f"node {node.id} was registered with data directory {old.data_id}, now it comes with {node.data_id}",
            node=node.id,
        )

    if 0 < node.starts <= old.starts and process_of(node) != process_of(old):
        raise MinkaError(
            Code.DATA_DIRECTORY_ROLLED_BACK,
            f"node {node.id} comes with a data directory that was started {node.starts} times, and it was started "
            f"{old.starts} times before",
            node=node.id,
        )


def process_of(node: Node) -> str:
    """The common part of the incarnations of one process, which may register several times."""
    return node.incarnation.partition(".")[0]


def leave(state: State, request: LeaveRequest, now_ms: int) -> Steps[LeaveResponse]:
    """Record that the node no longer serves anything; it may register again."""
    node = state.nodes.get(request.node_id)
    if node is not None and is_up(node) and node.incarnation == request.incarnation:
        after = on_node_failure(state, [node.id])
        yield [node_in_state(node, NodeState.NODE_STATE_LEFT, "stopped gracefully", now_ms)]
        yield from one_by_one(after)
    return LeaveResponse()


@dataclass(frozen=True, slots=True)
class FailNodes(OwnCommand):
    """The failure detector has not heard from these nodes for too long. `reasons`: by node."""

    reasons: Mapping[str, str]


def fail(state: State, command: FailNodes, now_ms: int) -> Steps[None]:
    """The nodes' clearances have ended; their partitions get other leaders, or go offline. All nodes fail together.
    Otherwise, when the first fails, one of the others might be elected, although it is about to fail.
    """
    nodes = [node for name in command.reasons if is_up(node := state.nodes.get(name)) and node is not None]
    failed = [node_in_state(n, NodeState.NODE_STATE_FAILED, command.reasons[n.id], now_ms) for n in nodes]
    after = on_node_failure(state, [node.id for node in nodes])
    yield from one_by_one(failed)
    yield from one_by_one(after)


def remove(state: State, request: RemoveNodeRequest, now_ms: int) -> Steps[RemoveNodeResponse]:
    """Remove a node from the cluster, though it may have copies that it has yet to delete. These can't come back: a
    node with the old data directory is refused. Raises UNKNOWN_NODE, and NODE_IN_USE while the node is up or has a
    replica.
    """
    node = state.nodes.get(request.node)
    if node is None:
        raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {request.node}", node=request.node)
    if is_up(node):
        is_ = NodeState.Name(node.state).removeprefix("NODE_STATE_")
        raise MinkaError(Code.NODE_IN_USE, f"node {node.id} is {is_}: stop it first", node=node.id)
    rows = list(state.partitions_on(node.id))
    if held := sum(node.id in row.replicas for row in rows):
        raise MinkaError(Code.NODE_IN_USE, f"node {node.id} holds {held} partitions", node=node.id)
    left = [PartitionChange(row).note_deleted(node.id).row() for row in rows]
    tombstones = [Record(tombstone_changed=row) for row in left if row.id in state.tombstones]
    kept = partitions_changed(row for row in left if row.id not in state.tombstones)
    yield [*kept, *tombstones, Record(node_removed=node)]
    return RemoveNodeResponse()
