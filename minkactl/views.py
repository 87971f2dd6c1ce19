"""The rows and documents that commands show, from a node's answer to GetStatus.

Numbers that only the active controller knows (sizes, heartbeats) are None when it didn't answer.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from minka.admin.keyspace_rows import Keyspace, KeyspaceSummary, keyspaces_of
from minka.cluster.in_sync import eligible_replicas, is_under_min_insync, missing_in_sync
from minka.cluster.key_ranges import KeyRange, is_by_ranges
from minka.engine.documents import to_document
from minka.engine.messages import unix_ms, word
from minka.v1.admin_pb2 import GetStatusResponse, KeyspaceCounts, NodeStatus
from minka.v1.cluster_pb2 import (
    Node,
    NodeState,
    Partition,
    PartitionState,
)
from minka.v1.coordinator_pb2 import ReplicaStats
from minkactl.pages import Column, Kind, Row
from minkactl.survey import Survey, is_known

NODE_STATE = NodeState.DESCRIPTOR
PARTITION_STATE = PartitionState.DESCRIPTOR

NODE_COLUMNS = (
    Column("NODE", "id"),
    Column("STATE", "state", Kind.STATE),
    Column("ROLE", "role"),
    Column("ADDRESS", "address"),
    Column("ZONE", "zone"),
    Column("PARTITIONS", "partitions", Kind.NUMBER),
    Column("LEADS", "leads", Kind.NUMBER),
    Column("DATA", "bytes", Kind.BYTES),
    Column("FREE", "disk_free_bytes", Kind.BYTES),
    Column("DISK", "disk", Kind.STATE),
    Column("TROUBLE", "trouble"),
    Column("HEARTBEAT", "heartbeat_age_ms", Kind.MILLISECONDS, wide=True),
    Column("SERVES", "serves", Kind.NUMBER, wide=True),
    Column("REMEMBERED", "remembered_state", wide=True),
    Column("LAST HEARD", "last_heard_ms", Kind.TIME, wide=True),
    Column("WHY NO ANSWER", "no_answer", wide=True),
    Column("HTTP", "http_address", wide=True),
    Column("DATA PORT", "data_address", wide=True),
    Column("CAPACITY", "capacity_bytes", Kind.BYTES, wide=True),
    Column("WEIGHT", "weight", Kind.NUMBER, wide=True),
    Column("APPLIED", "applied_index", Kind.NUMBER, wide=True),
    Column("SINCE", "state_since_ms", Kind.TIME, wide=True),
    Column("REASON", "state_reason", wide=True),
    Column("VERSION", "version", wide=True),
)
KEYSPACE_COLUMNS = (
    Column("KEYSPACE", "name"),
    Column("PARTITIONS", "partitions", Kind.NUMBER),
    Column("BY", "by"),
    Column("REPLICAS", "replicas", Kind.NUMBER),
    Column("ONLINE", "online", Kind.NUMBER),
    Column("ASSIGNED", "assigned", Kind.NUMBER),
    Column("OFFLINE", "offline", Kind.NUMBER),
    Column("KEYS", "keys", Kind.NUMBER),
    Column("DATA", "bytes", Kind.BYTES),
    Column("ID", "id", Kind.NUMBER, wide=True),
    Column("MIN IN SYNC", "min_insync", Kind.NUMBER, wide=True),
    Column("DURABILITY", "durability", wide=True),
    Column("UNCLEAN", "unclean_election", wide=True),
    Column("MAX DATA", "max_bytes", Kind.BYTES, wide=True),
    Column("MAX OPS/S", "max_ops", Kind.NUMBER, wide=True),
    Column("INTERNAL", "internal", wide=True),
    Column("CREATED", "created_ms", Kind.TIME, wide=True),
)
_OF_A_NEW_ONE = ("name", "partitions", "by", "replicas", "min_insync", "durability", "unclean_election", "id")
CREATED_COLUMNS = tuple(
    replace(column, wide=column.key == "id") for column in KEYSPACE_COLUMNS if column.key in _OF_A_NEW_ONE
)
PARTITION_COLUMNS = (
    Column("PARTITION", "name"),
    Column("ID", "id", Kind.NUMBER),
    Column("RANGE", "range"),
    Column("STATE", "state", Kind.STATE),
    Column("LEADER", "leader"),
    Column("REPLICAS", "replicas"),
    Column("GENERATION", "generation", Kind.NUMBER),
    Column("KEYS", "keys", Kind.NUMBER),
    Column("DATA", "bytes", Kind.BYTES),
    Column("OPS/S", "ops", Kind.NUMBER),
    Column("NOTE", "note"),
    Column("IN SYNC", "isr", wide=True),
    Column("ELIGIBLE", "eligible", wide=True),
    Column("ADDING", "adding_replicas", wide=True),
    Column("REMOVING", "removing_replicas", wide=True),
    Column("TARGET", "target_replicas", wide=True),
    Column("SUCCESSOR", "successor", wide=True),
    Column("UNCLEAN ELECTIONS", "unclean_elections", Kind.NUMBER, wide=True),
    Column("LEADER EPOCH", "leader_epoch", Kind.NUMBER, wide=True),
    Column("PARTITION EPOCH", "partition_epoch", Kind.NUMBER, wide=True),
    Column("CPU %", "cpu_percent", Kind.NUMBER, wide=True),
)
MEMBER_COLUMNS = (
    Column("NODE", "id"),
    Column("ROLE", "role"),
    Column("STATE", "state", Kind.STATE),
    Column("APPLIED", "applied_index", Kind.NUMBER),
    Column("LAG", "lag", Kind.NUMBER),
    Column("HEARTBEAT", "heartbeat_age_ms", Kind.MILLISECONDS),
    Column("ADDRESS", "address"),
)


def replica_stats(status: GetStatusResponse) -> dict[int, ReplicaStats]:
    """The leaders' last reports, by partition id."""
    return {stats.partition_id: stats for stats in status.replicas}


def node_rows(status: GetStatusResponse, asked: Survey | None = None) -> list[Row]:
    """A row for each node of the table, in its order; with its own answer, if all have been asked."""
    heard = {node.node_id: node for node in status.nodes}
    counts = {node.node_id: node for node in status.summary.nodes}
    rows: list[Row] = []
    for node in status.table.nodes:
        held, runtime = counts[node.id], heard.get(node.id)
        document = to_document(node)
        state, known = word(NODE_STATE, node.state), is_known(status)
        document |= {
            "state": state if known else "unknown",
            "remembered_state": None if known else state,
            "role": _role(status, node),
            "partitions": held.replicas,
            "leads": held.leads if known else None,
            "bytes": held.bytes if known else None,
            "heartbeat_age_ms": runtime.heartbeat_age_ms if runtime and runtime.HasField("heartbeat_age_ms") else None,
            "applied_index": runtime.applied_index if runtime else None,
            **_disk(runtime),
            "capacity_bytes": node.capacity_bytes or None,
            "weight": node.weight or 1,
        }
        if asked is not None:
            document |= _said(node, asked)
            document["trouble"] = _trouble(document["trouble"], runtime, asked)
        rows.append(document)
    return rows


def _trouble(said: str | None, runtime: NodeStatus | None, asked: Survey) -> str | None:
    """A word for the node's trouble, from its own answer and the active controller's view; None if all is well."""
    if runtime is None:
        return said
    if runtime.data_port_problem and asked.is_heard(runtime.node_id):
        return "data port"
    return said or ("damaged data" if asked.unserved_on(runtime.node_id).damaged else None)


def _disk(runtime: NodeStatus | None) -> Row:
    """The free space on the node's disk, as the node last told it."""
    if runtime is None or not runtime.disk.total_bytes:
        return {"disk": None, "disk_free_bytes": None, "disk_total_bytes": None}
    disk = runtime.disk
    return {
        "disk": "low" if disk.is_low else "ok",
        "disk_free_bytes": disk.free_bytes,
        "disk_total_bytes": disk.total_bytes,
    }


def _said(node: Node, asked: "Survey") -> Row:
    """The node's answer about itself; "trouble" is a word for what is wrong, None if nothing is."""
    report = asked.reports.get(node.id)
    answer = report.answer if report else None
    if report is None or answer is None:
        silent = {"answers": False, "no_answer": report.failure if report else "", "trouble": "no answer"}
        return silent | {"ready": None, "clearance": None, "serves": None, "last_heard_ms": asked.last_heard_ms(node)}
    trouble = None if answer.ready else "no clearance" if not answer.has_clearance else "not ready"
    return {
        "answers": True,
        "no_answer": None,
        "trouble": trouble,
        "ready": answer.ready,
        "clearance": answer.has_clearance,
        "serves": answer.leads,
        "last_heard_ms": None,
    }


def _role(status: GetStatusResponse, node: Node) -> str:
    """The node's part in the coordinator."""
    if node.id == status.coordinator.controller:
        return "controller"
    return "voter" if node.id in status.coordinator.voters else "learner"


def raft_document(status: GetStatusResponse) -> dict[str, Any]:
    """The document of `minkactl raft status`: the coordinator as the answering node knows it, and its members."""
    coordinator = status.coordinator
    nodes = {row["id"]: row for row in node_rows(status)}
    members = []
    for node in (*coordinator.voters, *coordinator.learners):
        row = nodes.get(node, {"id": node, "role": "voter" if node in coordinator.voters else "learner"})
        member = {column.key: row.get(column.key) for column in MEMBER_COLUMNS}
        applied = member["applied_index"]
        # The index is from the last heartbeat, so even a member that keeps up lags by later entries.
        member["lag"] = None if applied is None else max(coordinator.commit_index - applied, 0)
        members.append(member)
    return {"served_by": status.served_by, **to_document(coordinator), "members": members}


def keyspace_rows(status: GetStatusResponse) -> list[Row]:
    """A row for each keyspace of the table, in its order."""
    known = is_known(status)
    return [
        {
            **keyspace_document(keyspace),
            **states_of(status, [keyspace]),
            "keys": keyspace.keys if known else None,
            "bytes": keyspace.bytes if known else None,
        }
        for keyspace in keyspaces_of(status)
    ]


def states_of(
    status: GetStatusResponse, keyspaces: Collection[KeyspaceCounts | KeyspaceSummary]
) -> dict[str, int | None]:
    """The number of partitions in each state; None if it is only remembered."""
    found = remembered_states(keyspaces)
    return dict(found) if is_known(status) else dict.fromkeys(found)


def remembered_states(keyspaces: Collection[KeyspaceCounts | KeyspaceSummary]) -> dict[str, int]:
    """The number of partitions in each state by the table at hand."""
    return {
        "online": sum(keyspace.online for keyspace in keyspaces),
        "assigned": sum(keyspace.assigned for keyspace in keyspaces),
        "offline": sum(keyspace.offline for keyspace in keyspaces),
    }


def keyspace_document(keyspace: Keyspace) -> dict[str, Any]:
    """A keyspace's row."""
    hash_name = None if keyspace.hash_function is None else str(keyspace.hash_function)
    return {
        "id": keyspace.id,
        "name": keyspace.name,
        "partitions": keyspace.partitions,
        "by": hash_name or "ranges",
        "hash": hash_name,
        "replicas": keyspace.replicas,
        "min_insync": keyspace.min_insync,
        "durability": str(keyspace.durability),
        "unclean_election": keyspace.unclean_election,
        "max_bytes": keyspace.max_bytes,
        "max_ops": keyspace.max_ops,
        "internal": keyspace.internal,
        "created_ms": unix_ms(keyspace.created),
    }


def partition_names(status: GetStatusResponse) -> dict[int, str]:
    """The name for people of each partition id: keyspace/slot."""
    keyspaces = {keyspace.id: keyspace.name for keyspace in status.table.keyspaces}
    return {one.id: f"{keyspaces[one.keyspace_id]}/{one.slot}" for one in status.table.partitions}


def partition_rows(status: GetStatusResponse) -> list[Row]:
    """A row for each partition of the table, in its order; those of a keyspace by ranges in that of their keys."""
    view = PartitionView(status)
    rows = list(view.rows(status.table.partitions, status.replicas))
    starts = {one.id: one.start_key for one in status.table.partitions}
    places = {row["keyspace"]: place for place, row in reversed(list(enumerate(rows)))}
    return sorted(rows, key=lambda row: (places[row["keyspace"]], starts[row["id"]]))


class PartitionView:
    """Makes rows of partitions, also while these are still coming."""

    def __init__(self, status: GetStatusResponse) -> None:
        """`status` needs no partitions."""
        self._known = is_known(status)
        self._keyspaces = {keyspace.id: keyspace for keyspace in status.table.keyspaces}
        self._by_ranges = {keyspace.id for keyspace in status.table.keyspaces if is_by_ranges(keyspace)}

    def rows(self, partitions: Iterable[Partition], replicas: Iterable[ReplicaStats]) -> Iterator[Row]:
        """A row for each partition, with its leader's report."""
        stats = {one.partition_id: one for one in replicas}
        for partition in partitions:
            yield self._row(partition, stats.get(partition.id))

    def _row(self, partition: Partition, reported: ReplicaStats | None) -> Row:
        keyspace = self._keyspaces[partition.keyspace_id]
        name = f"{keyspace.name}/{partition.slot}"
        document = {"name": name, "keyspace": keyspace.name, **to_document(partition)}
        if partition.keyspace_id in self._by_ranges:
            document["range"] = str(KeyRange(partition.start_key, partition.end_key))
        del document["keyspace_id"], document["eligible_at"]
        document["eligible"] = list(eligible_replicas(partition))
        if not self._known:
            document |= {"state": "unknown", "remembered_state": document["state"]}
        document["under_replicated"] = missing_in_sync(partition) > 0
        document["under_min_insync"] = is_under_min_insync(partition, keyspace)
        document["keys"] = reported.keys if reported else None
        document["bytes"] = reported.bytes if reported else None
        document["ops"] = reported.ops if reported else None
        document["cpu_percent"] = reported.cpu_percent if reported else None
        if reported and reported.not_split:
            document["note"] = reported.not_split
        return document
