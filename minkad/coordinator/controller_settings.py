"""The settings of the active controller."""

from dataclasses import dataclass, field

from minkad.core.controller.mover import MigrationCaps
from minkad.duties.control.shard_control import ShardSettings


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The settings of the controller. Times are in seconds."""

    clearance: float
    failure_timeout: float
    stall_timeout: float
    caps: MigrationCaps
    max_replicas_per_node: int = 0  # a new keyspace may bring no node above this total; 0: no limit
    merge_after: float = 0.0  # neighbours that are small and cold for this long are merged; 0: never
    abandon_loads_after: float = 0.0  # a load that nobody has touched for this long is aborted; 0: never
    shards: ShardSettings = field(default_factory=ShardSettings)
