"""Turns proposals into a plan for `minkactl apply`: the controller plans the moves, and leaders propose the keys of
splits.
"""

from minka.admin.control import Control
from minka.cluster.plan_digest import plan_digest
from minka.errors import Code, MinkaError
from minka.load_report.proposals import Proposals, ProposedSplit
from minka.v1.admin_pb2 import Plan, PlannedSplit
from minka.v1.cluster_pb2 import PartitionTable


def make_plan(control: Control, proposals: Proposals, now_ms: int, reason: str = "load report") -> Plan:
    """The plan that carries out the proposals, made with the present table. It leaves out proposals that are no longer
    possible, and has a note on each of them. Nothing is changed. Raises the errors of Control when no controller
    answers.
    """
    table = control.table()
    notes = list(proposals.notes)
    plan = Plan(cluster_id=table.cluster.id, table_version=table.version, created_ms=now_ms, reason=reason)
    if proposals.moves:
        wanted = {move.partition_id: move.target_replicas for move in proposals.moves}
        try:
            plan = control.plan_reassign(partitions=wanted, reason=reason)
        except MinkaError as error:
            if error.code in (Code.UNREACHABLE, Code.NO_CONTROLLER, Code.DEADLINE_EXCEEDED):
                raise
            notes.append(f"the {len(wanted)} moves are left out: {error.message}")
    reasons = {move.partition_id: move.reason for move in proposals.moves}
    for move in plan.moves:
        move.reason = reasons[move.partition_id]
    for split in proposals.splits:
        keys = _keys(control, table, split, notes)
        if keys:
            plan.splits.append(
                PlannedSplit(
                    partition_id=split.partition_id,
                    partition=split.partition,
                    keyspace=split.keyspace,
                    generation=split.generation,
                    keys=keys,
                    bytes=split.bytes,
                    reason=split.reason,
                )
            )
    plan.notes.extend(notes)
    plan.digest = plan_digest(plan)
    return plan


def _keys(control: Control, table: PartitionTable, split: ProposedSplit, notes: list[str]) -> list[bytes]:
    address = next((node.address for node in table.nodes if node.id == split.leader), "")
    try:
        return control.split_keys(address, split.partition_id, split.parts)
    except MinkaError as error:
        notes.append(f"{split.partition} is not split, although it is {split.reason}: {error.message}")
        return []
