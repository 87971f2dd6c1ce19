"""The allowed values of each field of each request, declared only here. `minkad.rpc.validation` applies them.

A rule belongs to a field's name (`weight`), or to a message's and a field's name (`DutySpec.weight`) if the field's
name means several things. A message within a message is checked by the rules of its own fields. An enum must have a
value that this version knows. Checks that depend on the state of the cluster are in `minkad.core.controller`.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from minka.cluster.key_ranges import MAX_KEY_BYTES
from minka.cluster.name_rules import keyspace_problem, name_problem, node_id_problem
from minka.duties.limits import MAX_CHANGES, MAX_PALLETS, MAX_PAYLOAD_BYTES, MAX_WEIGHT
from minka.duties.names import id_problem, pallet_problem
from minka.v1.raft_pb2 import MessageType
from minkad.config.addresses import address_problem, is_wildcard

MAX_REQUEST_BYTES: Final = 16 * 1024 * 1024  # of a person or a client; the data stream has its own limits
MAX_MESSAGE_BYTES: Final = 36 * 1024 * 1024  # of any message: an entry of a partition's log has up to 32 MiB
MAX_CHUNK_BYTES: Final = 1024 * 1024
MANY: Final = 100_000  # of anything that comes once for each partition or move
FEW: Final = 1_000  # of replicas of one partition, voters, named keyspaces
NODES: Final = 10_000  # of anything that comes once for each node

Rule = Callable[[Any], str]
"""The fault of the value; "" if there is none."""


def any_value(_: Any) -> str:
    """Everything that the type allows."""
    return ""


def up_to(most: int) -> Rule:
    """Numbers up to `most`."""
    return lambda value: "" if value <= most else f"must be {most} at most, not {value}"


def text(most: int) -> Rule:
    """Up to `most` characters, all of them printable."""
    return lambda value: name_problem(value, most)


def note(most: int) -> Rule:
    """Up to `most` characters of any kind: a sentence that a node has composed, perhaps with texts of others."""
    return lambda value: "" if len(value) <= most else f"must have {most} characters at most, not {len(value)}"


def blob(most: int) -> Rule:
    """Up to `most` bytes."""
    return lambda value: "" if len(value) <= most else f"must have {most} bytes at most, not {len(value)}"


def or_nothing(rule: Rule) -> Rule:
    """A rule that also allows empty values."""
    return lambda value: rule(value) if value else ""


def address(value: str) -> str:
    """An address at which other nodes and clients reach a node."""
    if problem := address_problem(value):
        return f"must be host:port: {problem}"
    return "must be an address that others can dial" if is_wildcard(value) else ""


def of_another(value: int) -> str:
    """A type of message that a node sends to another node."""
    return "" if value in _SENT else f"{value} isn't a type of message between nodes"


def load_id(value: str) -> str:
    """The id of a load, or the name of a file of a load, which a node's spool uses as the file's name."""
    return (
        "" if _LOAD_ID.fullmatch(value) else "must be 1 to 100 letters, digits, _, . and -, the first a letter or digit"
    )


def share(value: float) -> str:
    """A weight relative to others, from 0 to 1,000,000."""
    return "" if 0 <= value <= 1_000_000 else f"must be from 0 to 1000000, not {value:g}"


_LOAD_ID: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,99}")
_LOCAL: Final = ("MSG_HUP", "MSG_BEAT", "MSG_UNREACHABLE", "MSG_SNAP_STATUS", "MSG_CHECK_QUORUM")
_SENT: Final = frozenset(number for name, number in MessageType.items() if name not in _LOCAL)
_NAME: Final = name_problem  # a name that the handler looks up; it refuses unknown names
_NAMES: Final = or_nothing(_NAME)
_TOKEN: Final = text(64)
_REASON: Final = text(1000)
_KEY: Final = blob(MAX_KEY_BYTES + 1)  # a bound may be the successor of the longest key
_POSITION: Final = up_to(2**62)  # an index of a log, or a term; there is room for the next

REQUIRED: Final = frozenset(
    {
        "RegisterRequest.node",
        "Node.id",
        "Node.data_id",
        "Node.incarnation",
        "Node.address",
        "ApplyPlanRequest.plan",
        "CreateKeyspaceRequest.name",
        *(f"{verb}LoadRequest.load_id" for verb in ("Begin", "Touch", "Commit", "Abort")),
        *("BeginLoadRequest.keyspace", "PullFileRequest.file", "LoadFile.name", "UploadHeader.file"),
        *("Pallet.id", "DutySpec.pallet", "DutySpec.id", "DutyName.pallet", "DutyName.id", "DutyPin.duty"),
        *("ExplainDutyRequest.name", "PlanRebalanceRequest.pallet", "ComparePalletRequest.pallet"),
        *("Shard.name", "Shard.incarnation", "PalletCapacity.pallet", "ShardHello.shard", "RegisterShardRequest.shard"),
        *("ShardSign.shard", "ShardReported.shard", "LeaveShardRequest.shard", "FailedDuty.holding"),
        "WeighedDuty.holding",
        *(f"{name}SnapshotRequest.snapshot_id" for name in ("Read", "Digest", "Release")),
        *(
            f"{message}.node_id"
            for message in (
                *("HeartbeatRequest", "HandOverRequest", "AlterIsrRequest", "ProposeSplitRequest"),
                *("FinishSplitRequest", "FinishMergeRequest", "ControlledShutdownRequest", "LeaveRequest"),
                "FinishLoadPartsRequest",
            )
        ),
    }
)

# Fields that only wrap the fields that a person gives: errors don't name the wrappers.
WRAPPERS: Final = frozenset(
    {
        *(f"DutyChange.{change}" for change in ("create", "update", "delete", "pin", "unquarantine")),
        *("PalletChange.create", "PalletChange.update", "DutyPin.duty"),
        *("CreateKeyspaceRequest.ranges", "ElectLeadersRequest.unclean", "ListPartitionsRequest.filter"),
    }
)

# Most values of a repeated field; the field's rule applies to each of them.
COUNTS: Final[dict[str, int]] = {
    "moves": MANY,
    "splits": MANY,
    "partitions": MANY,
    "changes": MANY,
    "migrations": MANY,
    "entries": MANY,
    "messages": MANY,
    "partition_ids": MANY,
    "damaged": MANY,
    "unanswered": NODES,
    "known_ids": MANY,
    "known_epochs": MANY,
    **dict.fromkeys(("mended_ids", "ended_migrations"), MANY),
    "split_points": MANY,
    **dict.fromkeys(("files", "waiting", "sources", "targets"), MANY),
    "FinishLoadPartsRequest.finished": MANY,
    "load_ids": FEW,
    "keyspaces": FEW,
    "ids": FEW,
    "slots": MANY,
    "silent": MANY,
    "PartitionFilter.ids": MANY,
    "DescribeNodeRequest.partitions": FEW,
    "notes": NODES,
    "keys": FEW,
    "nodes": NODES,
    "HeartbeatRequest.replicas": MANY,
    "ChangeDutiesRequest.changes": MAX_CHANGES,
    "ChangePalletsRequest.changes": MAX_CHANGES,
    "names": MAX_CHANGES,
    "shards": MANY,
    "signs": MANY,
    "reports": FEW,
    "Shard.pallets": MAX_PALLETS,
    **dict.fromkeys(("holdings", "attached", "released", "finished", "failed", "prepared", "times"), MANY),
    "ShardReport.weights": MANY,
    "shard_order": FEW,
    "replicas": FEW,
    "isr": FEW,
    "eligible": FEW,
    "adding_replicas": FEW,
    "removing_replicas": FEW,
    "target_replicas": FEW,
    "to": NODES,
    "drain": NODES,
    "weights": NODES,
    "wanted_buckets": MANY,
    "promote": FEW,
    "demote": FEW,
    "voters": FEW,
    "learners": FEW,
    "voters_outgoing": FEW,
    "learners_next": FEW,
}

_NUMBERS: Final = (
    *("known_version", "partition_count", "min_insync", "max_bytes", "max_ops", "rate_limit", "partition_id"),
    *("table_version", "created_ms", "minimum_moves", "partition_epoch", "bytes", "partitions_before", "limit", "id"),
    *("partitions_after", "bytes_before", "bytes_after", "leaders_before", "leaders_after", "ids", "partition_ids"),
    *("raft_id", "capacity_bytes", "state_since_ms", "sequence", "applied_index", "cpu_percent", "ops"),
    *("log_end_offset", "applied_offset", "bytes_total", "bytes_done", "lag", "leader_epoch", "generation"),
    *("MigrationProgress.tries", "kept_log_bytes"),
    *("merged_id", "merged_epoch", "controller_term", "keyspace_id", "slot", "unclean_elections", "split_from"),
    *("split_to", "merge_from", "merge_into", "from_id", "reject_hint", "vote", "checksum", "voters", "learners"),
    *("voters_outgoing", "learners_next", "ReplicaStats.keys", "CreateKeyspaceRequest.replicas", "Message.to"),
    *("known_ids", "known_epochs", "mended_ids"),
    "eligible_at",
    *("starts", "silence_ms", "log_crc", "total_bytes", "free_bytes", "low_mark_bytes"),
    *("ElectLeadersRequest.partitions", "DescribeNodeRequest.partitions"),
    *("if_version", "after", "duty", "duty_epoch", "Move.weight", "capacity", "duties_before", "duties_after"),
    *("weight_before", "weight_after", "Pallet.version", "changed_ms", "max_difference", "moves_per_shard"),
    *("epoch", "Holding.version", "known_index", "took_ms", "waited_ms", "grace_ms", "away_until_ms"),
    *("load_number", "LoadFile.rows", "xor", "sum"),
    *("registered_ms", "penalty", "crash_penalty", "penalty_ms", "version_since_ms", "wanted_buckets", "part_bytes"),
    *("after_offset", "until_offset", "find_child"),
    *("from_ms", "to_ms", "migrations_limit"),
    *("slots", "whole_up_to", "clock_ahead_ms", "answered_sequence"),
)
_FLAGS: Final = (
    "is_low",
    *("summary", "under_replicated", "under_min_insync", "with_removing", "stories"),
    "emptied",
    "with_parts",
    *(
        "queue",
        "queued",
        "unclean_election",
        "with_migrations",
        "accepts_zlib",
        "decommission",
        "splitting",
        "keeps_start",
        "reject",
        "auto_leave",
        "from_start",
    ),
    "keys_only",
    "log_unchecked",
    "without_clearance",
    *("emptied", "manual", "warm", "synthetic", "stationary", "lazy", "unplaced", "with_payloads", "quarantined"),
)

RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys((*_NUMBERS, *_FLAGS), any_value),
    **dict.fromkeys(("term", "log_term", "index", "commit", "commit_term"), _POSITION),
    "parts": up_to(FEW),
    "buckets": up_to(MANY),
    "snapshot_id": _TOKEN,
    "weight": up_to(1000),
    # Nodes and keyspaces
    "node_id": node_id_problem,
    "Node.id": node_id_problem,
    "Node.address": address,
    "http_address": or_nothing(address),
    "data_address": or_nothing(address),
    "zone": text(63),
    "data_id": _TOKEN,
    "incarnation": _TOKEN,
    "version": _TOKEN,
    "state_reason": note(4096),
    "CreateKeyspaceRequest.name": keyspace_problem,
    **dict.fromkeys(
        ("node", "silent", "promote", "demote", "to", "drain", "source", "target", "keyspace", "keyspaces"), _NAME
    ),
    **dict.fromkeys(("replicas", "target_replicas", "adding_replicas", "removing_replicas", "isr", "eligible"), _NAME),
    **dict.fromkeys(("leader", "successor"), _NAMES),
    "WeightsEntry.key": _NAME,
    "WeightsEntry.value": share,
    # Pallets, duties and shards
    **dict.fromkeys(("Pallet.id", "GetPalletsRequest.ids", "PalletChange.delete", "pallet"), pallet_problem),
    **dict.fromkeys(("DutySpec.id", "DutyName.id", "shard", "names", "shard_order", "Canary.version"), id_problem),
    "Shard.name": id_problem,
    "FailedDuty.reason": note(1000),
    **dict.fromkeys(("DutySpec.weight", "WeighedDuty.weight", "fill_limit"), up_to(MAX_WEIGHT)),
    "percent": up_to(100),
    "payload": blob(MAX_PAYLOAD_BYTES),
    "payload_bytes": up_to(MAX_PAYLOAD_BYTES),
    "payload_id": blob(16),
    # Plans and operations
    "partition": text(200),
    "cluster_id": _TOKEN,
    "known_cluster": or_nothing(_TOKEN),
    "digest": _TOKEN,
    "notes": note(4096),
    "requested_by": text(200),
    "reason": _REASON,
    **dict.fromkeys(("Move.reason", "PlannedSplit.reason"), note(4096)),
    "DamagedReplica.reason": note(4096),
    # Loads
    **dict.fromkeys(("load_id", "load_ids"), load_id),
    **dict.fromkeys(("LoadFile.name", "FetchRequest.name", "sources"), load_id),
    "job": note(8192),
    "WaitingPart.reason": note(4096),
    # Keys
    **dict.fromkeys(("keys", "key", "split_points", "start_key", "end_key"), _KEY),
    # Reports of nodes
    "not_split": note(65_536),
    **dict.fromkeys(("blocked_by", "MigrationProgress.remedy", "restarted_by"), note(65_536)),
    # Consensus
    "Message.type": of_another,
    "context": blob(4096),
    "Entry.data": blob(MAX_MESSAGE_BYTES),
    "Snapshot.data": blob(256 * 1024 * 1024),
    "SnapshotChunk.data": blob(MAX_CHUNK_BYTES),
}
