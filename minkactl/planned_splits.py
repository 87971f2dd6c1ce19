"""Makes the splits of a plan: the whole plan is checked against the table, then each keyspace's splits are an
operation.
"""

from itertools import groupby
from typing import TYPE_CHECKING

from minkactl.commands.migrations import note_begun, watch_operation
from minkactl.exits import Exit
from minkactl.output import note
from minkactl.plan_checks import check_partitions
from minkactl.session import Session

if TYPE_CHECKING:
    from minka.admin import Admin, Plan


def split_first(session: Session, admin: "Admin", plan: "Plan", reason: str) -> Exit:
    """Make the splits, and watch them to their end. Raises CLUSTER_MISMATCH, NO_CONTROLLER, and STALE_PLAN, before
    anything is done, when anything that the plan splits or moves has changed since it was made.
    """
    check_partitions(admin.control, plan.message)
    for keyspace, group in groupby(sorted(plan.splits, key=lambda one: one.keyspace), lambda one: one.keyspace):
        splits = list(group)
        keys = [key for one in splits for key in one.keys]
        why = reason or plan.reason or "; ".join(dict.fromkeys(one.reason for one in splits))
        operation = admin.split(keyspace, keys, reason=why[:1000], queue=plan.queued)
        if operation is None:
            note(f"A partition of {keyspace} begins at each of these keys already.")
            continue
        note_begun(operation)
        exit_code = watch_operation(session, admin.control, operation.id)
        if exit_code is not Exit.OK:
            return exit_code
    return Exit.OK
