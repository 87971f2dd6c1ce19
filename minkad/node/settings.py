"""The settings of a node's parts, from its configuration."""

import logging
import random
from typing import Final

import minka
from minka.v1.cluster_pb2 import Cluster, Node, NodeState
from minkad.config import Config
from minkad.coordinator.controller_settings import ControllerSettings
from minkad.coordinator.coordinator import Bootstrap
from minkad.coordinator.member import MemberSettings
from minkad.core.controller.mover import MigrationCaps
from minkad.core.controller.voters import VoterSettings
from minkad.core.raft import Config as RaftConfig
from minkad.core.raft import Storage
from minkad.duties.control.shard_control import ShardSettings
from minkad.duties.node.shard_sessions import SessionSettings
from minkad.process.clock import unix_ms
from minkad.replication.manager import StorageSettings

MIB: Final = 1024 * 1024
LEARNERS_A_BEAT: Final = 32  # at 20 heartbeats a second; each costs some 60 µs, and so does its answer
_raft_lines: Final = logging.getLogger("minkad.core.raft")


def node_row(config: Config, data_id: str, incarnation: str, starts: int = 0) -> Node:
    """The row with which this node registers."""
    return Node(
        id=config.node.id,
        data_id=data_id,
        incarnation=incarnation,
        starts=starts,
        address=config.grpc_address,
        http_address=config.http_address,
        data_address=config.data_address,
        zone=config.node.zone,
        capacity_bytes=config.node.capacity_bytes,
        weight=config.node.weight,
        version=minka.__version__,
    )


def bootstrap(config: Config, cluster_id: str) -> Bootstrap:
    """The cluster as its founders make it."""
    voters = [
        Node(id=peer.id, raft_id=i, address=peer.address, state=NodeState.NODE_STATE_JOINING)
        for i, peer in enumerate(config.cluster.bootstrap, 1)
    ]
    cluster = Cluster(id=cluster_id, name=config.cluster.name, min_nodes=config.cluster.min_nodes, created_ms=unix_ms())
    return Bootstrap(cluster, voters)


def raft_config(config: Config, raft_id: int, storage: Storage, applied: int, jitter: random.Random) -> RaftConfig:
    """The settings of the Raft group; `applied` is the index of the snapshot from which this node starts."""
    return RaftConfig(
        id=raft_id,
        storage=storage,
        random=jitter.randrange,
        election_tick=config.coordinator.election_ticks,
        heartbeat_tick=config.coordinator.heartbeat_ticks,
        learners_a_beat=LEARNERS_A_BEAT,
        applied=applied,
        commit_by_vote=True,
        disable_proposal_forwarding=True,
        logger=lambda level, text: _raft_lines.debug(text, extra={"raft_level": level}),
    )


def controller_settings(config: Config) -> ControllerSettings:
    """The settings of the active controller; a reload changes some of them."""
    membership, migrations = config.membership, config.migrations
    return ControllerSettings(
        clearance=membership.clearance_ms / 1000,
        failure_timeout=membership.failure_timeout_ms / 1000,
        stall_timeout=migrations.stall_timeout_s,
        caps=MigrationCaps(per_node=migrations.per_node, cluster=migrations.cluster),
        max_replicas_per_node=config.limits.replicas_per_node,
        merge_after=config.ranges.merge_after_s,
        abandon_loads_after=config.loads.abandoned_after_s,
        shards=ShardSettings(config.shards.clearance_ms / 1000, config.shards.failure_timeout_ms / 1000),
    )


def voter_settings(config: Config) -> VoterSettings:
    """The number of voters, and the time after which a voter that is gone loses its seat."""
    return VoterSettings(config.coordinator.voters, config.coordinator.replace_voter_after_s * 1000)


def holder_patience(config: Config) -> float:
    """Seconds for which a node retries to register while its predecessor's clearance may not be over."""
    return 2 * config.membership.failure_timeout_ms / 1000 + 1


def member_settings(config: Config) -> MemberSettings:
    """The settings of the membership."""
    interval = config.membership.heartbeat_interval_ms / 1000
    clearance = config.membership.clearance_ms / 1000
    return MemberSettings(interval, max(2 * interval, clearance), holder_patience(config))


def storage_settings(config: Config) -> StorageSettings:
    """The logs of the partitions, and what they keep."""
    return StorageSettings(
        flush=config.storage.log_retention_mib * MIB,
        change_retention=config.storage.change_retention_mib * MIB,
    )


def session_settings(config: Config) -> SessionSettings:
    """The settings of the shards' sessions."""
    return SessionSettings(config.shards.heartbeat_interval_ms / 1000, config.shards.failure_timeout_ms / 1000)
