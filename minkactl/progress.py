"""The progress of an operation: its migrations as rows with rate and time to go, from one look to the next."""

from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from minka.engine.documents import to_document
from minka.engine.messages import word
from minka.v1.admin_pb2 import Blocker, GetOperationsResponse, OperationSummary
from minka.v1.cluster_pb2 import Migration, MigrationState
from minka.v1.cluster_pb2 import Operation as OperationMessage
from minka.v1.coordinator_pb2 import MigrationPhase, MigrationProgress
from minkactl.documents import record_document
from minkactl.pages import Column, Kind, Row

if TYPE_CHECKING:
    from minka.admin import Operation

MIGRATION_STATE: Final = MigrationState.DESCRIPTOR
WINDOW_MS: Final = 5000  # the rate is that of the last five seconds
ENDED: Final = ("completed", "cancelled")
OPERATION_KINDS: Final = [kind.name for kind in OperationMessage.DESCRIPTOR.oneofs_by_name["kind"].fields]

OPERATION_COLUMNS = (
    Column("OPERATION", "id"),
    Column("KIND", "kind"),
    Column("STATE", "state", Kind.STATE),
    Column("MIGRATIONS", "migration_count", Kind.NUMBER),
    Column("BY", "by"),
    Column("STARTED", "created_ms", Kind.TIME),
    Column("TOOK", "took_ms", Kind.MILLISECONDS),
    Column("OUTCOME", "outcome"),
    Column("WHY", "reason", wide=True),
    Column("NODE", "node", wide=True),
    Column("PAUSED", "paused", wide=True),
    Column("LIMIT", "rate_limit", Kind.BYTES, wide=True),
    Column("PLAN", "plan_digest", wide=True),
)
BLOCKER_COLUMNS = (
    Column("OPERATION", "operation_id"),
    Column("PARTITION", "partition"),
    Column("BLOCKED BY", "reason"),
    Column("WHAT HELPS", "remedy"),
)
MIGRATION_COLUMNS = (
    Column("OPERATION", "operation_id"),
    Column("PARTITION", "partition"),
    Column("SOURCE", "source"),
    Column("TARGET", "target"),
    Column("STATE", "state", Kind.STATE),
    Column("PHASE", "phase"),
    Column("DONE", "bytes_done", Kind.BYTES),
    Column("TOTAL", "bytes_total", Kind.BYTES),
    Column("RATE", "rate", Kind.BYTES),
    Column("ETA", "eta_ms", Kind.MILLISECONDS),
    Column("BLOCKED BY", "blocked_by"),
    Column("OUTCOME", "outcome"),
    Column("REASON", "reason", wide=True),
    Column("COPIES", "tries", Kind.NUMBER, wide=True),
    Column("BEGUN AGAIN BY", "restarted_by", wide=True),
    Column("LOG KEPT", "kept_log_bytes", Kind.BYTES, wide=True),
    Column("STARTED", "started_ms", Kind.TIME, wide=True),
    Column("HANDED OVER", "handed_over_ms", Kind.TIME, wide=True),
    Column("FINISHED", "finished_ms", Kind.TIME, wide=True),
)
STATE_COLUMNS = (
    Column("OPERATION", "operation_id"),
    Column("STATE", "state", Kind.STATE),
    Column("MIGRATIONS", "migrations", Kind.NUMBER),
)


class Rate:
    """Bytes a second over the last `WINDOW_MS`."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=100)

    def update(self, now_ms: int, done: int) -> float:
        """The rate when `done` bytes are done by now; 0 until there are two samples."""
        samples = self._samples
        if samples and done < samples[-1][1]:
            samples.clear()  # a transfer that started again
        samples.append((now_ms, done))
        while len(samples) > 2 and now_ms - samples[0][0] > WINDOW_MS:
            samples.popleft()
        elapsed = now_ms - samples[0][0]
        return (done - samples[0][1]) * 1000 / elapsed if elapsed > 0 else 0.0


class Tracker:
    """Follows operations. `names` and `sizes` (bytes) of partitions are as known at the start."""

    def __init__(self, names: Mapping[int, str], sizes: Mapping[int, int]) -> None:
        self._names = names
        self._duties: dict[int, str] = {}  # names, by number
        self._sizes = dict(sizes)
        self._rates: dict[int, Rate] = {}
        self._whole = Rate()

    def documents(self, response: GetOperationsResponse) -> list[dict[str, Any]]:
        """For each operation: {operation, progress, migrations, blockers}; the migrations by state, then name."""
        from minka.admin.operation_rows import operation_of

        progress = {(one.partition_id, one.target): one for one in response.progress}
        self._duties.update(response.duty_names)
        summaries = {one.operation_id: one for one in response.summaries}
        rows: dict[int, list[Row]] = {operation.id: [] for operation in response.operations}
        for migration in response.migrations:
            targets = [migration.target] if migration.target else migration.target_replicas
            found = (progress.get((migration.partition_id, target)) for target in targets)
            reported = _together([one for one in found if one is not None])
            rows.setdefault(migration.operation_id, []).append(self._row(migration, reported, response.now_ms))
        operations = [(one.id, operation_document(operation_of(one), response.now_ms)) for one in response.operations]
        return [
            {
                "operation": operation,
                "progress": self._sum(rows[id_], summaries.get(id_), operation, response.now_ms),
                "migrations": sorted(rows[id_], key=_order),
                "blockers": [blocker_document(one) for one in response.blockers if one.operation_id == id_],
            }
            for id_, operation in operations
        ]

    def _row(self, migration: Migration, reported: MigrationProgress | None, now_ms: int) -> Row:
        row = to_document(migration)
        row["state"] = state = word(MIGRATION_STATE, migration.state)
        partition_id = migration.partition_id
        if reported is not None and reported.bytes_total:
            self._sizes[partition_id] = reported.bytes_total
        total = self._sizes.get(partition_id)
        done = reported.bytes_done if reported is not None else 0
        if state in ("handed_over", "completed"):
            done = total or 0
        speed = self._rates.setdefault(partition_id, Rate()).update(now_ms, done) if state == "copying" else 0.0
        left = (total or 0) - done
        return row | {
            "partition": self._name(migration),
            "phase": _phase(reported) if reported is not None and state == "copying" else "",
            "bytes_done": done,
            "bytes_total": total,
            "lag": reported.lag if reported is not None else None,
            "rate": round(speed) or None,
            "eta_ms": round(left * 1000 / speed) if speed and left > 0 else None,
            "blocked_by": reported.blocked_by if reported is not None else "",
            "tries": reported.tries if reported is not None else 0,
            "restarted_by": reported.restarted_by if reported is not None else "",
            "kept_log_bytes": reported.kept_log_bytes if reported is not None else 0,
        }

    def _name(self, migration: Migration) -> str:
        """The name of the duty or the partition that is moved."""
        if migration.HasField("duty"):
            return self._duties.get(migration.duty, f"duty {migration.duty}")
        return self._names.get(migration.partition_id, str(migration.partition_id))

    def _sum(self, rows: list[Row], summary: OperationSummary | None, operation: Row, now_ms: int) -> dict[str, Any]:
        """The progress of all the operation's migrations; `rows` may be only some of them."""
        going = [row for row in rows if row["state"] != "cancelled"]
        done, total = sum(row["bytes_done"] for row in going), sum(row["bytes_total"] or 0 for row in going)
        states = Counter(row["state"] for row in rows)
        if summary is not None and summary.by_state and sum(summary.by_state.values()) > len(rows):
            states = Counter({word(MIGRATION_STATE, state): n for state, n in sorted(summary.by_state.items())})
            done, total = summary.bytes_done, summary.bytes_total
        speed = 0.0 if operation["finished_ms"] else self._whole.update(now_ms, done)
        return {
            "migrations": states.total(),
            "by_state": dict(states),
            "completed": states["completed"],
            "cancelled": states["cancelled"],
            "bytes_done": done,
            "bytes_total": total,
            "rate": round(speed) or None,
            "eta_ms": round((total - done) * 1000 / speed) if speed and total > done else None,
            "elapsed_ms": operation["took_ms"],
        }


def state_rows(document: Mapping[str, Any]) -> list[Row]:
    """The number of an operation's migrations in each state; `document` is one of `Tracker.documents`."""
    counts, operation_id = document["progress"]["by_state"], document["operation"]["id"]
    return [{"operation_id": operation_id, "state": name, "migrations": count} for name, count in counts.items()]


def _phase(reported: MigrationProgress) -> str:
    return word(MigrationPhase.DESCRIPTOR, reported.phase) if reported.phase else ""


def _together(reported: list[MigrationProgress]) -> MigrationProgress | None:
    """The progress to several targets as that of one: bytes are added, the largest lag counts."""
    if len(reported) < 2:
        return reported[0] if reported else None
    whole = MigrationProgress()
    whole.CopyFrom(reported[0])
    whole.bytes_done = sum(one.bytes_done for one in reported)
    whole.bytes_total = sum(one.bytes_total for one in reported)
    whole.lag = max(one.lag for one in reported)
    whole.tries = max(one.tries for one in reported)
    whole.kept_log_bytes = max(one.kept_log_bytes for one in reported)
    whole.blocked_by = "; ".join(dict.fromkeys(one.blocked_by for one in reported if one.blocked_by))
    return whole


def operation_document(operation: "Operation", now_ms: int | None = None) -> dict[str, Any]:
    """The operation's document, with the fields of its kind beside the others, its requester (minkad for an automatic
    one) and, given the time `now_ms`, how long it took or has taken so far.
    """
    document = record_document(operation)
    kinds = [document.pop(kind) for kind in OPERATION_KINDS]
    own: Row = next((one for one in kinds if one is not None), {})
    by = "minkad" if operation.automatic else operation.requested_by
    took = {} if now_ms is None else {"took_ms": max((document["finished_ms"] or now_ms) - document["created_ms"], 0)}
    return {**document, **own, "by": by, **took}


def blocker_document(blocker: Blocker) -> Row:
    """The blocker's document."""
    from minka.admin import operation_rows
    from minka.engine.messages import read

    return record_document(read(operation_rows.Blocker, blocker))


def _order(row: Row) -> tuple[int, str, int]:
    """The key that sorts migrations: those that move first, then those that wait, then those that have ended; within
    that by partition."""
    ranks = {"copying": 0, "handed_over": 1, "pending": 2, "cancelled": 3, "completed": 4}
    keyspace, _, slot = row["partition"].rpartition("/")
    return ranks.get(row["state"], 5), keyspace, int(slot) if slot.isdecimal() else 0
