"""The rows and pages of pallets, duties and shards, from the cluster's answers."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from minka.duties import documents
from minka.duties.duty_rows import (
    BalancerComparison,
    DutyExplanation,
    DutyMove,
    DutyRow,
    DutyStatus,
    Pallet,
    PalletSummary,
    Shards,
)
from minka.engine.messages import unix_ms
from minkactl.pages import Column, Kind, Listing, Page, Row, fields

if TYPE_CHECKING:
    from rich.console import RenderableType

DUTY_COLUMNS: Final = (
    Column("DUTY", "name"),
    Column("SHARD", "shard"),
    Column("STATE", "state", Kind.STATE),
    Column("WEIGHT", "weight", Kind.NUMBER),
    Column("KIND", "kind"),
    Column("VERSION", "version", Kind.NUMBER),
    Column("PAYLOAD", "payload_bytes", Kind.BYTES),
    Column("NOTE", "note"),
    Column("EPOCH", "epoch", Kind.NUMBER, wide=True),
    Column("REPORTED WEIGHT", "reported_weight", Kind.NUMBER, wide=True),
    Column("SINCE", "since_ms", Kind.TIME, wide=True),
    Column("CREATED", "created_ms", Kind.TIME, wide=True),
    Column("CHANGED", "changed_ms", Kind.TIME, wide=True),
    Column("NUMBER", "number", Kind.NUMBER, wide=True),
)
PALLET_COLUMNS: Final = (
    Column("PALLET", "id"),
    Column("BALANCER", "balancing"),
    Column("DUTIES", "duties", Kind.NUMBER),
    Column("ATTACHED", "attached", Kind.NUMBER),
    Column("NOWHERE", "unplaced_count", Kind.NUMBER),
    Column("WEIGHT", "weight", Kind.NUMBER),
    Column("SHARDS", "shards", Kind.NUMBER),
    Column("NOTE", "note"),
    Column("ON FAILURE", "on_failure", wide=True),
    Column("WARM", "warm", wide=True),
    Column("MOVES A SHARD", "moves_per_shard", Kind.NUMBER, wide=True),
    Column("HAND-OVER P50", "hand_over_p50_ms", Kind.MILLISECONDS, wide=True),
    Column("HAND-OVER P99", "hand_over_p99_ms", Kind.MILLISECONDS, wide=True),
    Column("VERSION", "version", Kind.NUMBER, wide=True),
    Column("CREATED", "created_ms", Kind.TIME, wide=True),
    Column("CHANGED", "changed_ms", Kind.TIME, wide=True),
)
LOAD_COLUMNS: Final = (
    Column("SHARD", "shard"),
    Column("PALLET", "pallet"),
    Column("STATE", "state", Kind.STATE),
    Column("DUTIES", "duties", Kind.NUMBER),
    Column("WEIGHT", "weight", Kind.NUMBER),
    Column("CAPACITY", "capacity", Kind.NUMBER),
    Column("LOAD", "load_percent", Kind.PERCENT),
    Column("SCORE", "score", Kind.NUMBER),
    Column("VERSION", "version"),
    Column("NODE", "node"),
    Column("NOTE", "note"),
    Column("HEARTBEAT", "heartbeat_age_ms", Kind.MILLISECONDS, wide=True),
    Column("RELEASING", "releasing", Kind.NUMBER, wide=True),
    Column("SINCE", "state_since_ms", Kind.TIME, wide=True),
)
MOVED_COLUMNS: Final = (
    Column("MOVED", "time_ms", Kind.TIME),
    Column("DUTY", "name"),
    Column("FROM", "source"),
    Column("TO", "target"),
    Column("WHY", "reason"),
)
VERDICT_COLUMNS: Final = (
    Column("SHARD", "shard"),
    Column("POSSIBLE", "possible"),
    Column("WHY", "reason"),
)
COMPARE_COLUMNS: Final = (
    Column("BALANCER", "kind"),
    Column("NOW", "now"),
    Column("MOVES", "moves", Kind.NUMBER),
    Column("FEWEST", "minimum_moves", Kind.NUMBER),
    Column("WEIGHT SKEW", "weight_skew"),
    Column("COUNT SKEW", "count_skew"),
    Column("LOAD SKEW", "load_skew"),
    Column("WOULD NOT FIT", "unplaced", Kind.NUMBER),
)
MAX_MOVES: Final = 10  # on a terminal


def _plain(view: msgspec.Struct) -> dict[str, Any]:
    """A document of JSON values."""
    document: dict[str, Any] = msgspec.to_builtins(view)
    return document


def duty_document(row: DutyRow, *, with_payload: bool = False) -> dict[str, Any]:
    """The duty's document, as REST gives it."""
    return _plain(documents.duty_view(row, with_payload=with_payload))


def _failed_on(quarantine: dict[str, Any]) -> str:
    """The shard and a colon; the reason for all shards with a version names the last of them itself."""
    if quarantine["shard"]:
        return f"{quarantine['shard']}:"
    return f"shards with version {quarantine['shard_version'] or 'none'}, at last on"


def duty_row(document: Row) -> Row:
    """The row of a table for the document."""
    held = [one for one in document.get("assignments", ()) if one["state"] != "preparing"]
    kinds = [kind for kind in ("synthetic", "stationary", "lazy") if document[kind]]
    notes = [f"pinned to {document['pinned_to']}"] if document["pinned_to"] else []
    notes += ["is being deleted"] if document["deleting"] else []
    notes += [document["unplaced"]] if document.get("unplaced") else []
    notes += [f"could not be attached on {_failed_on(one)} {one['reason']}" for one in document["quarantines"]]
    states = sorted({one["state"] for one in held})
    if "assignments" in document and not held:
        states = ["nowhere"]
    return {
        **document,
        "name": f"{document['pallet']}/{document['id']}",
        "shard": [one["shard"] for one in held],
        "state": ", ".join(states),
        "epoch": max((one["epoch"] for one in held), default=None),
        "since_ms": max((one["since_ms"] for one in held), default=None),
        "kind": kinds,
        "note": "; ".join(notes),
    }


def duties_page(statuses: Iterable[DutyStatus], limit: int) -> Page:
    """A list of the first `limit` duties."""
    some = list(islice(statuses, limit + 1))
    found = [duty_document(status) for status in some[:limit]]
    rows = [duty_row(document) for document in found]
    listing = Listing(DUTY_COLUMNS, rows, "No such duty.")
    left_out = f"Only the first {limit:,} are shown, and there are more: --limit N" if len(some) > limit else ""
    return Page(found, [listing], [row["name"] for row in rows], left_out=left_out)


def changed_page(duties: Sequence[DutyRow]) -> Page:
    """The duties as changes have made them."""
    found = [duty_document(duty) for duty in duties]
    rows = [duty_row(document) for document in found]
    return Page(found[0] if len(found) == 1 else found, [Listing(DUTY_COLUMNS, rows)], [row["name"] for row in rows])


def duty_page(status: DutyStatus) -> Page:
    """All about one duty."""
    document = duty_document(status, with_payload=True)
    name = f"{document['pallet']}/{document['id']}"
    facts = {key: value for key, value in document.items() if key not in ("assignments", "quarantines", "suspicion")}
    return Page(document, [fields(facts), Listing(DUTY_COLUMNS[:3], [duty_row(document)])], [name])


def _balancing(settings: Row) -> str:
    balancer = settings["balancer"]
    text: str = balancer["kind"].replace("_", " ")
    match balancer["kind"]:
        case "round_robin" if balancer["max_difference"]:
            return f"{text}, {balancer['max_difference']} apart at most"
        case "spill_over" if balancer["fill_limit"]:
            return f"{text} at {balancer['fill_limit']:,} by {balancer['fill_by']}"
        case "fair_workload" if balancer["pre_sort"] == "date":
            return f"{text}, by date"
    return text


def pallet_document(pallet: Pallet, summary: PalletSummary | None = None) -> dict[str, Any]:
    """The pallet's document, as REST gives it, with how long its recent hand-overs took."""
    document = _plain(documents.pallet_view(pallet, summary))
    if summary is not None:
        times = summary.hand_overs
        document["hand_overs"] = {
            "count": times.count,
            "p50_ms": times.p50_ms,
            "p99_ms": times.p99_ms,
            "max_ms": times.max_ms,
        }
    return document


def pallet_row(document: Row) -> Row:
    """The row of a table for the document."""
    notes = ["manual"] if document["manual"] else []
    if canary := document["canary"]:
        notes.append(f"{canary['percent']} % on version {canary['version']}")
    notes += [document["held_back"]] if document.get("held_back") else []
    times = document.get("hand_overs") or {"count": 0}
    return {
        **document,
        "balancing": _balancing(document),
        "shards": len(document["loads"]) if "loads" in document else None,
        "hand_over_p50_ms": times["p50_ms"] if times["count"] else None,
        "hand_over_p99_ms": times["p99_ms"] if times["count"] else None,
        "note": "; ".join(notes),
    }


def pallets_page(summaries: Iterable[PalletSummary]) -> Page:
    """A list of pallets."""
    found = [pallet_document(summary.pallet, summary) for summary in summaries]
    listing = Listing(PALLET_COLUMNS, [pallet_row(one) for one in found], "No pallet yet: minkactl pallet create NAME.")
    return Page(found, [listing], [one["id"] for one in found])


def changed_pallet_page(pallet: Pallet) -> Page:
    """The pallet as a change has made it."""
    document = pallet_document(pallet)
    return Page(document, [Listing(PALLET_COLUMNS, [pallet_row(document)])], [pallet.id])


def pallet_page(summary: PalletSummary) -> Page:
    """One pallet, with each shard's part of it and the duties that are nowhere."""
    document = pallet_document(summary.pallet, summary)
    loads = [_load_row(load) for load in document["loads"]]
    columns = [column for column in LOAD_COLUMNS if column.key in _OF_A_LOAD]
    listings = [Listing(PALLET_COLUMNS, [pallet_row(document)]), Listing(columns, loads, "No shard takes it.")]
    if document["unplaced"]:
        listings.append(Listing((Column("NOWHERE", "id"), Column("WHY", "reason")), document["unplaced"]))
    return Page(document, listings, [summary.pallet.id], _with_bars(listings))


_OF_A_LOAD: Final = ("shard", "duties", "weight", "capacity", "load_percent")


def _load_row(load: Row) -> Row:
    """The row of a shard's part of a pallet, with the percentage of its capacity."""
    capacity = load["capacity"]
    return {**load, "load_percent": 100 * load["weight"] // capacity if capacity else None}


def shards_page(found: Shards, name: str = "") -> Page:
    """The page of each shard's part of each pallet beside its capacity; then the latest moves, with their reasons. With
    `name`, only the moves to and from this shard.
    """
    shards = [_plain(documents.shard_view(one)) for one in found.shards]
    rows: list[Row] = []
    for shard in shards:
        own = {**shard, "shard": shard["name"], "note": shard["state_reason"] if shard["state"] != "live" else ""}
        loads = shard["loads"] or [{"pallet": "", "duties": 0, "weight": 0, "capacity": None}]
        rows += [{**own, **_load_row({**load, "shard": shard["name"]})} for load in loads]
    moves = [moved_row(one) for one in found.moves if name in ("", one.source, one.target)]
    listings = [Listing(LOAD_COLUMNS, rows, "No shard yet: a process becomes one with minka.duties.run_shard.")]
    if moves:
        listings.append(Listing(MOVED_COLUMNS, moves))
    names = [shard["name"] for shard in shards]
    return Page({"shards": shards, "moves": moves}, listings, names, _with_bars(listings))


def _with_bars(listings: Sequence[Listing]) -> Any:
    def draw(wide: bool) -> "RenderableType":
        from minkactl.render import tables

        drawn = []
        for one in listings:
            if any(column.kind is Kind.PERCENT for column in one.columns):
                drawn.append(tables.loads(one, wide))
            else:
                moved = one.columns is MOVED_COLUMNS and not wide
                drawn.append(tables.table(Listing(one.columns, _alike(one.rows)) if moved else one, wide))
        return tables.stacked(drawn)

    return draw


def _alike(moves: Sequence[Row]) -> list[Row]:
    """The moves, those with one reason together, the newest first."""
    groups: dict[tuple[str | None, str | None, str], list[Row]] = {}
    for move in moves:
        groups.setdefault((move["source"], move["target"], move["reason"]), []).append(move)
    rows: list[Row] = []
    for group in list(groups.values())[:MAX_MOVES]:
        more = f" and {len(group) - 1:,} more" if len(group) > 1 else ""
        rows.append({**group[0], "name": group[0]["name"] + more})
    return rows


def moved_row(moved: DutyMove) -> Row:
    """The row of a move that was made."""
    return {
        "time_ms": unix_ms(moved.time),
        "name": f"{moved.pallet}/{moved.id}",
        "source": moved.source,
        "target": moved.target,
        "reason": moved.reason,
    }


def explain_page(found: DutyExplanation) -> Page:
    """The shard that has the duty and why, and the verdict on each other shard."""
    document = duty_document(found.status)
    verdicts = [{"shard": one.shard, "possible": one.possible, "reason": one.verdict} for one in found.shards]
    moves = [moved_row(one) for one in found.moves]
    name = f"{document['pallet']}/{document['id']}"
    whole = {"duty": document, "summary": found.summary, "shards": verdicts, "moves": moves}
    listings = [
        Listing((Column("DUTY", "name"), Column("SUMMARY", "reason")), [{"name": name, "reason": found.summary}]),
        Listing(DUTY_COLUMNS, [duty_row(document)]),
        Listing(VERDICT_COLUMNS, verdicts, "There is no shard."),
    ]
    if moves:
        listings.append(Listing(MOVED_COLUMNS, moves))
    return Page(whole, listings, [name])


def compare_page(found: Sequence[BalancerComparison]) -> Page:
    """The four balancers beside each other."""
    rows = [
        {
            "kind": one.kind.value,
            "now": "yes" if one.is_present else "",
            "moves": one.moves,
            "minimum_moves": one.minimum_moves,
            "weight_skew": round(one.weight_skew, 3),
            "count_skew": round(one.count_skew, 3),
            "load_skew": round(one.load_skew, 3) or None,
            "unplaced": one.unplaced,
            "loads": [_load_row(_plain(documents.load_view(load))) for load in one.loads],
        }
        for one in found
    ]
    return Page(rows, [Listing(COMPARE_COLUMNS, rows)], [one.kind for one in found])
