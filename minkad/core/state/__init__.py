"""The replicated state: the tables that the Raft log builds, alike on every node."""

from minkad.core.state.names import partition_name
from minkad.core.state.partition_states import PARTITION_TRANSITIONS, PartitionStateName, partition_state
from minkad.core.state.replica_states import REPLICA_TRANSITIONS, ReplicaStateName, is_up, replica_state
from minkad.core.state.state import NotifyNode, State
from minkad.core.state.transitions import MIGRATIONS_UNDER_WAY

__all__ = [
    "MIGRATIONS_UNDER_WAY",
    "PARTITION_TRANSITIONS",
    "REPLICA_TRANSITIONS",
    "NotifyNode",
    "PartitionStateName",
    "ReplicaStateName",
    "State",
    "is_up",
    "partition_name",
    "partition_state",
    "replica_state",
]
