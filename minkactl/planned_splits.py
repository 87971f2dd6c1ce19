"""Makes the splits of a plan: the whole plan is checked against the table, then each keyspace's splits are an
operation.
"""

from itertools import groupby
from typing import TYPE_CHECKING

from minkactl.commands.migrations import note_begun, watch_operation
from minkactl.exits import Exit
from minkactl.output import note
from minkactl.session import Session, requester

if TYPE_CHECKING:
    from minka.control import Control
    from minka.v1.admin_pb2 import GetStatusResponse, Plan


def split_first(session: Session, control: "Control", plan: "Plan", reason: str) -> Exit:
    """Make the splits, and watch them to their end. Raises CLUSTER_MISMATCH, and STALE_PLAN while nothing is done, when
    anything that the plan splits or moves has changed since it was made.
    """
    from minka.v1.admin_pb2 import PartitionFilter

    ids = [*(one.partition_id for one in plan.splits), *(one.partition_id for one in plan.moves)]
    _check(control.partitions(PartitionFilter(ids=ids)).whole(), plan)
    for keyspace, group in groupby(sorted(plan.splits, key=lambda one: one.keyspace), lambda one: one.keyspace):
        splits = list(group)
        keys = [key for one in splits for key in one.keys]
        why = reason or plan.reason or "; ".join(dict.fromkeys(one.reason for one in splits))
        operation = control.split(keyspace, keys, requester(), why[:1000], queue=plan.queued)
        if operation is None:
            note(f"A partition of {keyspace} begins at each of these keys already.")
            continue
        note_begun(operation)
        exit_code = watch_operation(session, control, operation.id)
        if exit_code is not Exit.OK:
            return exit_code
    return Exit.OK


def _check(status: "GetStatusResponse", plan: "Plan") -> None:
    from minka.errors import Code, MinkaError

    if plan.cluster_id != status.table.cluster.id:
        text = f"the plan is for cluster {plan.cluster_id}, this is {status.table.cluster.id}"
        raise MinkaError(Code.CLUSTER_MISMATCH, text)
    rows = {row.id: row for row in status.table.partitions}
    for split in plan.splits:
        row = rows.get(split.partition_id)
        if row is None or row.generation != split.generation:
            now = f"now it is {row.generation}" if row is not None else "it is gone"
            raise MinkaError(Code.STALE_PLAN, f"{split.partition}: its generation was {split.generation}, {now}")
    for move in plan.moves:
        row = rows.get(move.partition_id)
        if not plan.queued and (row is None or row.partition_epoch != move.partition_epoch):
            now = f"now it is {row.partition_epoch}" if row is not None else "it is gone"
            raise MinkaError(Code.STALE_PLAN, f"{move.partition}: its epoch was {move.partition_epoch}, {now}")
