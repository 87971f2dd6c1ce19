"""Checks that everything a plan moves or splits is still as it was when the plan was made."""

from typing import TYPE_CHECKING

from minkactl.session import Session

if TYPE_CHECKING:
    from minka.admin.control import Control
    from minka.errors import MinkaError
    from minka.v1.admin_pb2 import GetStatusResponse, Plan


def check_current(session: Session, control: "Control", plan: "Plan") -> None:
    """Raises CLUSTER_MISMATCH, STALE_PLAN when anything that the plan moves or splits has changed since it was made,
    and NO_CONTROLLER when no active controller answers.
    """
    check_partitions(control, plan)
    if plan.pallet:
        _check_duties(session, plan)


def check_partitions(control: "Control", plan: "Plan") -> None:
    """The same for the partitions of the plan alone."""
    from minka.errors import Code, MinkaError
    from minka.v1.admin_pb2 import PartitionFilter
    from minkactl.survey import is_known

    moved = [one.partition_id for one in plan.moves if not one.HasField("duty")]
    ids = [*(one.partition_id for one in plan.splits), *moved]
    status = control.partitions(PartitionFilter(ids=ids)).whole() if ids else control.summary()
    if plan.cluster_id != status.table.cluster.id:
        text = f"the plan is for cluster {plan.cluster_id}, this is {status.table.cluster.id}"
        raise MinkaError(Code.CLUSTER_MISMATCH, text)
    if not is_known(status):
        raise MinkaError(Code.NO_CONTROLLER, "whether the plan still holds is not known")
    _check_splits(status, plan)
    _check_moves(status, plan)


def _stale(text: str) -> "MinkaError":
    from minka.errors import Code, MinkaError

    return MinkaError(Code.STALE_PLAN, text)


def _check_splits(status: "GetStatusResponse", plan: "Plan") -> None:
    rows = {row.id: row for row in status.table.partitions}
    for split in plan.splits:
        row = rows.get(split.partition_id)
        if row is None or row.generation != split.generation:
            now = f"now it is {row.generation}" if row is not None else "it is gone"
            raise _stale(f"{split.partition}: its generation was {split.generation}, {now}")


def _check_moves(status: "GetStatusResponse", plan: "Plan") -> None:
    from minka.v1.cluster_pb2 import NodeState

    rows = {row.id: row for row in status.table.partitions}
    live = {node.id for node in status.table.nodes if node.state == NodeState.NODE_STATE_LIVE}
    for move in plan.moves:
        if move.HasField("duty"):
            continue
        row = rows.get(move.partition_id)
        if not plan.queued and (row is None or row.partition_epoch != move.partition_epoch):
            now = f"now it is {row.partition_epoch}" if row is not None else "it is gone"
            raise _stale(f"{move.partition}: its epoch was {move.partition_epoch}, {now}")
        missing = [node for node in move.target_replicas if node not in move.replicas and node not in live]
        if missing:
            raise _stale(f"{move.partition} can't go to {missing[0]}, which is not LIVE")


def _check_duties(session: Session, plan: "Plan") -> None:
    with session.duties() as client:
        shards = {one.name for one in client.shards().shards}
        assigned = {status.duty.number: status.assignments for status in client.list(plan.pallet)}
    for move in plan.moves:
        held = assigned.get(move.duty, ())
        if not any((one.shard, one.epoch) == (move.source, move.duty_epoch) for one in held):
            raise _stale(f"{move.partition} is no longer on {move.source} with epoch {move.duty_epoch}")
        if move.target not in shards:
            raise _stale(f"{move.partition} can't go to {move.target}: there is no such shard")
