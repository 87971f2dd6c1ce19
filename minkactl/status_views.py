"""The document of `minkactl status`, from all nodes' answers about themselves."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from minka.admin.control import Control
from minka.engine.documents import to_document
from minka.engine.messages import word
from minka.errors import MinkaError
from minka.v1.admin_pb2 import GetStatusResponse
from minka.v1.duties_pb2 import ShardState
from minkactl.pages import Row
from minkactl.problems import problems
from minkactl.progress import operation_document
from minkactl.survey import HEARD_LATELY_MS, Survey
from minkactl.views import keyspace_rows, node_rows, remembered_states, states_of
from minkactl.zones import zone_rows

DUTIES_S: Final = 0.5  # for each of two questions


def duty_totals(control: Control) -> Row | None:
    """The sums over all pallets and shards; None if no node answers in time."""
    try:
        pallets, shards = control.pallets(DUTIES_S).pallets, control.shards(DUTIES_S).shards
    except MinkaError:
        return None
    states = Counter(word(ShardState.DESCRIPTOR, one.shard.state) for one in shards)
    return {
        "pallets": len(pallets),
        "duties": sum(one.duties for one in pallets),
        "attached": sum(one.attached for one in pallets),
        "nowhere": sum(one.unplaced_count for one in pallets),
        "quarantined": sum(one.quarantined for one in pallets),
        "shards": dict(sorted(states.items())),
    }


def status_document(asked: Survey, duties: Row | None) -> dict[str, Any]:
    """Everything that `minkactl status` says. Facts that are only remembered are null, and are in `remembered`."""
    status = asked.status
    nodes, found = node_rows(status, asked), problems(asked)
    return {
        "cluster": to_document(status.table.cluster),
        "healthy": all(problem["severity"] != "error" for problem in found),
        "known": asked.known,
        "problems": found,
        "served_by": status.served_by,
        "from_controller": status.from_controller,
        "table_version": status.table.version,
        "coordinator": _coordinator(asked),
        "served": served(asked),
        "nodes": nodes,
        "zones": zone_rows(status) if asked.known else [],
        "keyspaces": keyspace_rows(status),
        "partitions": states_of(status, status.summary.keyspaces),
        "remembered": None if asked.known else _remembered(asked),
        "duties": duties,
        "balance": balance(nodes),
        "operations": _operations(status),
    }


def _operations(status: GetStatusResponse) -> list[Row]:
    """The documents of those that run."""
    if not status.running:
        return []
    from minka.admin.operation_rows import operation_of  # most often nothing runs, and the page starts sooner

    return [operation_document(operation_of(one)) for one in status.running]


def _coordinator(asked: Survey) -> dict[str, Any]:
    """The coordinator's document. Its leader is not taken from a node without clearance: a learner may never hear that
    the leader is gone.
    """
    document = to_document(asked.status.coordinator)
    answers = [report.answer for report in asked.reports.values() if report.answer is not None]
    if not asked.known and not any(answer.has_clearance or answer.is_controller for answer in answers):
        document["controller"] = ""
    return document


def _remembered(asked: Survey) -> Row:
    return {
        "by": asked.status.served_by,
        "until_ms": asked.remembered_ms,
        "partitions": remembered_states(asked.status.summary.keyspaces),
    }


def balance(nodes: Iterable[Row]) -> dict[str, int | None]:
    """The least and the most that a live node holds, in partitions and in bytes; None if no node is known to be
    live.
    """
    live = [node for node in nodes if node["state"] == "live"]
    partitions = [node["partitions"] for node in live]
    sizes = [node["bytes"] for node in live if node["bytes"] is not None]
    return {
        "min_partitions": min(partitions, default=None),
        "max_partitions": max(partitions, default=None),
        "min_bytes": min(sizes, default=None),
        "max_bytes": max(sizes, default=None),
    }


def served(asked: Survey) -> dict[str, Any]:
    """Count the partitions for which a node answers reads and writes as their leader now.

    `stale_reads` are those of which a replica in sync, on a node that answers, can say how old it is.
    """
    counts = _by_leaders(asked) if asked.known else _by_those_who_answer(asked)
    total = asked.status.summary.partitions
    stale = None if asked.unreadable is None else total - asked.unreadable
    document = {"partitions": total, **counts, "stale_reads": stale}
    return {**document, "sentence": _sentence(asked, document)}


def _by_leaders(asked: Survey) -> dict[str, int]:
    """Count by the active controller's table, and by the leaders' answers."""
    heard = asked.heartbeat_ages_ms
    summary = asked.status.summary
    online = sum(keyspace.online for keyspace in summary.keyspaces)
    counts = {"served": 0, "not_served": summary.partitions - online, "unknown": 0}
    for node in summary.nodes:
        answer, damaged = asked.answer(node.node_id), asked.unserved_on(node.node_id).damaged_online
        counts["not_served"] += damaged
        if answer is not None:
            counts["served" if answer.has_clearance else "not_served"] += node.leads_online - damaged
        else:
            lately = heard.get(node.node_id, HEARD_LATELY_MS) < HEARD_LATELY_MS
            counts["served" if lately else "unknown"] += node.leads_online - damaged
    return counts


def _by_those_who_answer(asked: Survey) -> dict[str, int]:
    """Count without an active controller: by the nodes' answers, and what silent nodes may do."""
    total = asked.status.summary.partitions
    answers = [report.answer for report in asked.reports.values() if report.answer is not None]
    serving = min(sum(answer.leads for answer in answers), total)
    elsewhere = total - serving if _may_decide(asked) else 0
    return {"served": serving, "not_served": total - serving - elsewhere, "unknown": elsewhere}


def _may_decide(asked: Survey) -> bool:
    """True if voters that can't be asked, with those that have clearance, may have an active controller."""
    voters = list(asked.status.coordinator.voters)
    able = 0
    for voter in voters:
        report = asked.reports.get(voter)
        if report is None or report.answer is None:
            able += report is None or not report.refused
        else:
            able += report.answer.has_clearance or bool(report.answer.controller)
    return 2 * able > len(voters)


def _sentence(asked: Survey, document: Row) -> str:
    total, now = document["partitions"], document["served"]
    if not total:
        return "no partition yet" if asked.status.table.cluster.id else "nothing yet"
    if now == total:
        return f"all {total:,} partitions" if total > 1 else "the only partition"
    text = f"{now:,} of {total:,} partitions"
    if not now and not asked.known:
        readable = document["stale_reads"]
        stale = "stale reads" if readable is None else f"stale reads, of {readable:,} of {total:,} partitions"
        text = f"nothing but {stale}: no node that answers has clearance"
    if document["unknown"]:
        silent = [n for n, report in asked.reports.items() if report.answer is None and not report.refused]
        text += f"; for {document['unknown']:,} it can't be known, since {_and(silent)} can't be asked"
    return text


def _and(names: list[str]) -> str:
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
