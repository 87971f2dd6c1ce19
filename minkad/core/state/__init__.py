"""The replicated state: the tables that the Raft log builds, alike on every node."""

from minkad.core.state.names import partition_name
from minkad.core.state.state import NotifyNode, State

__all__ = ["NotifyNode", "State", "partition_name"]
