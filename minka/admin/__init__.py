"""Administering a cluster: `Admin` creates keyspaces, makes and applies plans, follows operations and looks after
nodes. `minkactl` makes its changes with the same methods, but shows more than they return. All other names here are
types that the methods take and return.

    with Admin() as admin:
        plan = admin.plan_reassign(keyspaces=["flights"])
        if plan.moves:
            operation = admin.wait(admin.apply(plan, reason="a new node"), timeout=600)
            if operation.state is not OperationState.SUCCEEDED:  # `wait` raises nothing for a FAILED operation
                sys.exit(f"{operation.state}: {operation.outcome}")
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minka.admin.admin_client import Admin
    from minka.admin.cluster_rows import DrainStatus, Node, NodeState, Partition, PartitionState, ShardOnNode
    from minka.admin.keyspace_rows import Durability, HashFunction, Keyspace, KeyspaceSummary, Partitioning
    from minka.admin.operation_rows import (
        Blocker,
        DrainOperation,
        Election,
        ElectLeadersOperation,
        MergeOperation,
        Migration,
        MigrationState,
        Operation,
        OperationKind,
        OperationState,
        ReassignOperation,
        RebalanceOperation,
        SplitOperation,
    )
    from minka.admin.plans import Move, NodeBalance, Plan, PlannedSplit, ShardBalance
    from minka.errors import Code, MinkaError

__all__ = [
    "Admin",
    "Blocker",
    "Code",
    "DrainOperation",
    "DrainStatus",
    "Durability",
    "ElectLeadersOperation",
    "Election",
    "HashFunction",
    "Keyspace",
    "KeyspaceSummary",
    "MergeOperation",
    "Migration",
    "MigrationState",
    "MinkaError",
    "Move",
    "Node",
    "NodeBalance",
    "NodeState",
    "Operation",
    "OperationKind",
    "OperationState",
    "Partition",
    "PartitionState",
    "Partitioning",
    "Plan",
    "PlannedSplit",
    "ReassignOperation",
    "RebalanceOperation",
    "ShardBalance",
    "ShardOnNode",
    "SplitOperation",
]

# The module of a name is imported when the name is first used, since minkad and minkactl need only some of the modules.
_MODULES = {
    "Admin": "minka.admin.admin_client",
    **dict.fromkeys(("Code", "MinkaError"), "minka.errors"),
    **dict.fromkeys(
        ("Partitioning", "HashFunction", "Durability", "Keyspace", "KeyspaceSummary"), "minka.admin.keyspace_rows"
    ),
    **dict.fromkeys(
        (
            *("OperationState", "OperationKind", "MigrationState", "Operation", "Migration", "Blocker", "Election"),
            *("DrainOperation", "ElectLeadersOperation", "MergeOperation"),
            *("ReassignOperation", "RebalanceOperation", "SplitOperation"),
        ),
        "minka.admin.operation_rows",
    ),
    **dict.fromkeys(("Move", "NodeBalance", "Plan", "PlannedSplit", "ShardBalance"), "minka.admin.plans"),
}


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'minka.admin' has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES.get(name, "minka.admin.cluster_rows")), name)


def __dir__() -> list[str]:
    return __all__
