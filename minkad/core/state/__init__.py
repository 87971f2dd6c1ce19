"""The replicated state: the tables that the Raft log builds, equal on every node."""

from minkad.core.duties.duty_table import (
    Assignment,
    DutyState,
    Load,
    NotifyShard,
    assignment_row,
    assignments_changed,
    duty_name,
    weight_of,
)
from minkad.core.state.display_names import partition_name
from minkad.core.state.loads import KEPT_LOADS, LOADS_UNENDED, LoadTable
from minkad.core.state.own_table import OwnTable
from minkad.core.state.partition_states import PARTITION_TRANSITIONS, PartitionStateName, partition_state
from minkad.core.state.placed import Placed
from minkad.core.state.ranges import check_ranges, other_half, range_of
from minkad.core.state.replica_lists import holders, replace
from minkad.core.state.replica_states import REPLICA_TRANSITIONS, ReplicaStateName, is_up, replica_states
from minkad.core.state.slices import ROWS_A_PIECE, slices
from minkad.core.state.state import ALL, OPERATIONS_UNENDED, Effect, NotifyNode, State
from minkad.core.state.transitions import MIGRATIONS_ENDED

__all__ = [
    "ALL",
    "KEPT_LOADS",
    "LOADS_UNENDED",
    "MIGRATIONS_ENDED",
    "OPERATIONS_UNENDED",
    "PARTITION_TRANSITIONS",
    "REPLICA_TRANSITIONS",
    "ROWS_A_PIECE",
    "Assignment",
    "DutyState",
    "Effect",
    "Load",
    "LoadTable",
    "NotifyNode",
    "NotifyShard",
    "OwnTable",
    "PartitionStateName",
    "Placed",
    "ReplicaStateName",
    "State",
    "assignment_row",
    "assignments_changed",
    "check_ranges",
    "duty_name",
    "holders",
    "is_up",
    "other_half",
    "partition_name",
    "partition_state",
    "range_of",
    "replace",
    "replica_states",
    "slices",
    "weight_of",
]
