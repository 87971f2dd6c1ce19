"""What happened to a partition's replicas lately, from all nodes that have one, in the order of time."""

from datetime import UTC, datetime
from typing import Any, Final

from minka.admin.control import Control
from minka.errors import MinkaError
from minka.v1.admin_pb2 import ReplicaEvent
from minka.v1.cluster_pb2 import Partition, PartitionTable
from minkactl.pages import Column, Kind, Listing, Page

COLUMNS: Final = (
    Column("TIME", "time"),
    Column("NODE", "node"),
    Column("EPOCH", "leader_epoch", Kind.NUMBER),
    Column("APPLIED", "applied", Kind.NUMBER, wide=True),
    Column("COMMITTED", "committed", Kind.NUMBER),
    Column("DURABLE", "durable", Kind.NUMBER, wide=True),
    Column("LOG END", "log_end", Kind.NUMBER),
    Column("TIMES", "times", Kind.NUMBER),
    Column("WHAT", "what"),
)
_ANSWER_SECONDS: Final = 2.0


def story_of(control: Control, table: PartitionTable, row: Partition, name: str) -> Page:
    """The page. Nodes that don't answer, or have no replica, are named beneath it."""
    addresses = {node.id: node.address for node in table.nodes}
    found: list[dict[str, Any]] = []
    silent: list[str] = []
    for node in row.replicas:
        try:
            answer = control.copies_at(addresses.get(node, ""), [row.id], _ANSWER_SECONDS, stories=True)
        except MinkaError as error:
            silent.append(f"{node} doesn't answer ({error.message})")
            continue
        if not answer.copies:
            silent.append(f"{node} has no replica")
        found += [_row(node, event) for copy in answer.copies for event in copy.story]
    found.sort(key=lambda one: one["at_ms"])
    listing = Listing(COLUMNS, found, "Nothing has happened to it since its nodes' start.")
    left_out = f"Not shown: {'; '.join(silent)}." if silent else ""
    return Page(found, [listing], [name], left_out=left_out)


def _row(node: str, event: ReplicaEvent) -> dict[str, Any]:
    at = datetime.fromtimestamp(event.at_ms / 1000, UTC)
    return {
        "at_ms": event.at_ms,
        "time": f"{at:%Y-%m-%d %H:%M:%S}.{event.at_ms % 1000:03}Z",
        "node": node,
        "what": event.what,
        "times": event.times,
        "leader_epoch": event.leader_epoch,
        "applied": event.applied,
        "committed": event.committed,
        "durable": event.durable,
        "log_end": event.log_end,
    }
