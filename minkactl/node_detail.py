"""All known facts about one node, for `minkactl nodes NAME`."""

from typing import Any, Final

from minka.admin.operation_rows import operation_of
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import GetStatusResponse
from minka.v1.cluster_pb2 import Partition
from minkactl.pages import Column, Kind, Row
from minkactl.progress import operation_document
from minkactl.suggest import did_you_mean
from minkactl.units import clock, counted, duration, number, size
from minkactl.views import node_rows, partition_names, replica_stats

KEYSPACE_COLUMNS: Final = (
    Column("KEYSPACE", "keyspace"),
    Column("REPLICAS", "replicas", Kind.NUMBER),
    Column("LEADS", "leads", Kind.NUMBER),
    Column("NOT IN SYNC", "not_in_sync", Kind.NUMBER),
    Column("TO DELETE", "to_delete", Kind.NUMBER),
    Column("DATA", "bytes", Kind.BYTES),
)
_MAX_NAMED: Final = 12


def node_document(status: GetStatusResponse, listed: GetStatusResponse, name: str) -> dict[str, Any]:
    """The node's row, and which partitions it leads, has to catch up with, gets, and has yet to delete. `status` is
    the summary, `listed` has the node's partitions.

    Raises MinkaError(UNKNOWN_NODE).
    """
    row = next((one for one in node_rows(status) if one["id"] == name), None)
    if row is None:
        known = [node.id for node in status.table.nodes]
        raise MinkaError(Code.UNKNOWN_NODE, f"no node {name!r}{did_you_mean(name, known)}")
    names, rows = partition_names(listed), listed.table.partitions
    return {
        **row,
        "served_by": status.served_by,
        "from_controller": status.from_controller,
        "led": [names[one.id] for one in rows if one.leader == name],
        "not_in_sync": [names[one.id] for one in rows if name in one.replicas and name not in one.isr],
        "joining": [names[one.id] for one in rows if name in one.adding_replicas],
        "to_delete": [names[one.id] for one in rows if name in one.removing_replicas],
        "keyspaces": _by_keyspace(listed, name),
        "operations": [operation_document(operation_of(one)) for one in status.running if one.drain.node == name],
    }


def _by_keyspace(status: GetStatusResponse, name: str) -> list[Row]:
    """The part of each keyspace that the node has."""
    stats, found = replica_stats(status), list[Row]()
    by_keyspace: dict[int, list[Partition]] = {keyspace.id: [] for keyspace in status.table.keyspaces}
    for one in status.table.partitions:
        by_keyspace[one.keyspace_id].append(one)
    for keyspace in status.table.keyspaces:
        rows = by_keyspace[keyspace.id]
        own = [one for one in rows if name in one.replicas]
        deleting = sum(name in one.removing_replicas for one in rows)
        if not own and not deleting:
            continue
        sizes = [stats[one.id].bytes for one in own if one.id in stats]
        found.append(
            {
                "keyspace": keyspace.name,
                "replicas": len(own),
                "leads": sum(one.leader == name for one in own),
                "not_in_sync": sum(name not in one.isr for one in own),
                "to_delete": deleting,
                "bytes": sum(sizes) if status.from_controller else None,
            }
        )
    return found


def facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts about the node for people; empty lines are left out."""
    heard = document["heartbeat_age_ms"]
    pairs = {
        "Node": document["id"],
        "State": document["state"] + (f": {document['state_reason']}" if document["state_reason"] else ""),
        "Since": clock(document["state_since_ms"]) if document["state_since_ms"] else "",
        "Heard": f"{duration(heard / 1000)} ago" if heard is not None else "not known",
        "Role": document["role"],
        "Address": document["address"],
        "HTTP": document["http_address"],
        "Data port": document["data_address"],
        "Zone": document["zone"],
        "Weight": number(document["weight"]),
        "Capacity": size(document["capacity_bytes"]) if document["capacity_bytes"] else "no limit",
        "Version": document["version"],
        "Holds": f"{counted(document['partitions'], 'replica')}, and leads {number(document['leads'])}",
        "Data": "not known: the active controller did not answer"
        if document["bytes"] is None
        else size(document["bytes"]),
        "Not in sync": _list(document["not_in_sync"]),
        "Is getting": _list(document["joining"]),
        "To delete": _list(document["to_delete"]),
        "Drain": "; ".join(f"operation {one['id']}: minkactl drain {one['node']}" for one in document["operations"]),
    }
    return [(name, text) for name, text in pairs.items() if text]


def _list(names: list[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more:,} more (-o json names them)" if more > 0 else "")
