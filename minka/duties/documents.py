"""Pallets and duties as JSON and YAML documents: REST takes and gives them, and `minkactl apply -f` reads them.

A payload is `payload`, which is text, or `payload_base64` for other bytes, in the manner of `data` and `data_base64` in
the JSON format of CloudEvents.
"""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from minka.duties import changes
from minka.duties.limits import MAX_ID_CHARS, MAX_WEIGHT
from minka.errors import Code, MinkaError
from minka.v1 import duties_pb2 as rows
from minka.v1.duty_api_pb2 import DutyChange, DutyStatus, PalletChange, PalletSummary, ShardLoad, ShardStatus

Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARS, description="1 to 256 printable characters")]
PalletId = Annotated[
    str, Meta(min_length=1, max_length=MAX_ID_CHARS, pattern="^[^/]*$", description="as an id, without a slash")
]
Weight = Annotated[int, Meta(ge=0, le=MAX_WEIGHT, description="in the unit of the shards' capacities")]
Count = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Version = Annotated[
    int, Meta(ge=0, description="precondition: refused with VERSION_MISMATCH if it has another; 0: none")
]
Milliseconds = Annotated[int, Meta(description="Unix milliseconds")]


class Balancer(Struct, forbid_unknown_fields=True, frozen=True):
    """How the duties of a pallet are spread over the shards that take it."""

    kind: Literal["round_robin", "spill_over", "capacity_workload", "fair_workload"] = "capacity_workload"
    max_difference: Count = 0
    fill_by: Literal["capacity", "weight", "count"] = "capacity"
    fill_limit: Weight = 0
    shard_order: tuple[Id, ...] = ()
    pre_sort: Literal["weight", "date"] = "weight"


class Canary(Struct, forbid_unknown_fields=True, frozen=True):
    """A share of the duties is to be on shards of one version."""

    version: Id
    percent: Annotated[int, Meta(ge=1, le=100)]


class PalletSettings(Struct, forbid_unknown_fields=True, frozen=True):
    """What a client says of a pallet. An update replaces all of it."""

    id: PalletId
    balancer: Balancer = Balancer()
    manual: bool = False
    on_failure: Literal["reattach", "leave"] = "reattach"
    warm: bool = False
    moves_per_shard: Count = 0
    canary: Canary | None = None


class PalletUpdate(PalletSettings, forbid_unknown_fields=True, frozen=True):
    """A pallet whose settings are to be replaced."""

    version: Version = 0


class Unplaced(Struct, frozen=True):
    """A duty that is nowhere."""

    id: str
    reason: str


class Load(Struct, frozen=True):
    """What a shard has of a pallet; `capacity` is null if it states none."""

    shard: str
    pallet: str
    duties: int
    weight: int
    capacity: int | None


class PalletView(PalletSettings, frozen=True, kw_only=True):
    """A pallet as it is."""

    version: int
    created_ms: Milliseconds
    changed_ms: Milliseconds
    duties: int | UnsetType = UNSET
    attached: int | UnsetType = UNSET
    weight: int | UnsetType = UNSET
    unplaced_count: int | UnsetType = UNSET
    quarantined: int | UnsetType = UNSET
    unplaced: list[Unplaced] | UnsetType = UNSET
    loads: list[Load] | UnsetType = UNSET
    held_back: str | UnsetType = UNSET


class DutyName(Struct, forbid_unknown_fields=True, frozen=True):
    """The name of a duty, perhaps with the version that it has to have."""

    pallet: PalletId
    id: Id
    version: Version = 0


class _WithPayload(Struct, forbid_unknown_fields=True, frozen=True):
    """What a client says about a duty."""

    pallet: PalletId
    id: Id
    payload: str | None = None
    payload_base64: bytes | None = None
    weight: Weight | None = None

    def content(self) -> bytes | None:
        """The payload; None if none is given. Raises MinkaError(INVALID_ARGUMENT) if both forms are given."""
        if self.payload is not None and self.payload_base64 is not None:
            text = f"duty {self.pallet}/{self.id} has a payload and a payload_base64: only one is possible"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        return self.payload.encode() if self.payload is not None else self.payload_base64


class DutyDocument(_WithPayload, forbid_unknown_fields=True, frozen=True):
    """A duty to be created; its weight is 1 if none is given."""

    synthetic: bool = False
    stationary: bool = False
    lazy: bool = False


class DutyUpdate(_WithPayload, forbid_unknown_fields=True, frozen=True):
    """A duty to be changed; what is left out stays as it is."""

    version: Version = 0


class Assignment(Struct, frozen=True):
    """A shard that has the duty, or is about to. `epoch` is the fencing token."""

    shard: str
    state: str
    epoch: int
    since_ms: Milliseconds
    reason: str


class Quarantine(Struct, frozen=True):
    """A shard on which the duty couldn't be attached."""

    shard: str
    shard_version: str
    reason: str
    since_ms: Milliseconds


class Suspicion(Struct, frozen=True):
    """Shards that have failed while they were attaching the duty: how many, the last of them, and when the duty is
    tried again.
    """

    failures: int
    shard: str
    since_ms: Milliseconds
    retry_ms: Milliseconds


class DutyView(Struct, frozen=True, kw_only=True):
    """A duty as it is."""

    pallet: str
    id: str
    number: int
    version: int
    weight: int
    reported_weight: int | None
    synthetic: bool
    stationary: bool
    lazy: bool
    payload_bytes: int
    payload: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    created_ms: Milliseconds
    changed_ms: Milliseconds
    pinned_to: str
    deleting: bool
    quarantines: list[Quarantine]
    suspicion: Suspicion | None
    assignments: list[Assignment] | UnsetType = UNSET
    unplaced: str | UnsetType = UNSET


class ShardView(Struct, frozen=True):
    """A process that hosts duties, as it is. `score` is 0 to 100; with a low one it gets nothing."""

    name: str
    node: str
    version: str
    state: str
    state_reason: str
    state_since_ms: Milliseconds
    score: int
    heartbeat_age_ms: int
    assigned: int
    attached: int
    releasing: int
    loads: list[Load]
    grace_ms: int
    away_until_ms: Milliseconds
    registered_ms: Milliseconds


def _word(enum: Any, number: int) -> str:
    """BALANCER_KIND_ROUND_ROBIN as round_robin."""
    prefix = enum.Name(0).removesuffix("UNSPECIFIED")
    name: str = enum.Name(number) if number in enum.values() else str(number)
    return name.removeprefix(prefix).lower()


def _number(enum: Any, word: str) -> Any:
    return enum.Value(enum.Name(0).removesuffix("UNSPECIFIED") + word.upper())


_BY_DEFAULT: Final = Balancer()


def pallet_row(document: PalletSettings) -> rows.Pallet:
    """The row that is sent for the document."""
    balancer = document.balancer
    row = rows.Pallet(
        id=document.id,
        balancer=rows.Balancer(
            kind=_number(rows.BalancerKind, balancer.kind),
            max_difference=balancer.max_difference,
            fill_by=_number(rows.FillBy, balancer.fill_by),
            fill_limit=balancer.fill_limit,
            shard_order=balancer.shard_order,
            pre_sort=_number(rows.PreSort, balancer.pre_sort),
        ),
        manual=document.manual,
        on_failure=_number(rows.OnFailure, document.on_failure),
        warm=document.warm,
        moves_per_shard=document.moves_per_shard,
    )
    if document.canary is not None:
        row.canary.version, row.canary.percent = document.canary.version, document.canary.percent
    return row


def _settings(row: rows.Pallet) -> dict[str, Any]:
    balancer = row.balancer
    return {
        "id": row.id,
        "balancer": Balancer(
            _word(rows.BalancerKind, balancer.kind) if balancer.kind else _BY_DEFAULT.kind,  # type: ignore[arg-type]
            balancer.max_difference,
            _word(rows.FillBy, balancer.fill_by) if balancer.fill_by else _BY_DEFAULT.fill_by,  # type: ignore[arg-type]
            balancer.fill_limit,
            tuple(balancer.shard_order),
            _word(rows.PreSort, balancer.pre_sort) if balancer.pre_sort else _BY_DEFAULT.pre_sort,  # type: ignore[arg-type]
        ),
        "manual": row.manual,
        "on_failure": _word(rows.OnFailure, row.on_failure) if row.on_failure else "reattach",
        "warm": row.warm,
        "moves_per_shard": row.moves_per_shard,
        "canary": Canary(row.canary.version, row.canary.percent) if row.HasField("canary") else None,
    }


def pallet_settings(row: rows.Pallet) -> PalletSettings:
    """The settings of a pallet, as a client has given them."""
    return PalletSettings(**_settings(row))


def pallet_view(row: rows.Pallet, summary: PalletSummary | None = None) -> PalletView:
    """The pallet's document, with what its duties add up to if that is known."""
    counted: dict[str, Any] = {}
    if summary is not None:
        counted = {
            "duties": summary.duties,
            "attached": summary.attached,
            "weight": summary.weight,
            "unplaced_count": summary.unplaced_count,
            "quarantined": summary.quarantined,
            "unplaced": [Unplaced(one.id, one.reason) for one in summary.unplaced],
            "loads": [load_view(one) for one in summary.loads],
            "held_back": summary.held_back,
        }
    times: dict[str, Any] = {"version": row.version, "created_ms": row.created_ms, "changed_ms": row.changed_ms}
    return PalletView(**_settings(row), **times, **counted)


def shard_view(status: ShardStatus) -> ShardView:
    """The shard's document, with what it holds."""
    shard = status.shard
    return ShardView(
        shard.name,
        shard.node,
        shard.version,
        _word(rows.ShardState, shard.state),
        shard.state_reason,
        shard.state_since_ms,
        status.score,
        status.heartbeat_age_ms,
        status.assigned,
        status.attached,
        status.releasing,
        [load_view(one) for one in status.loads],
        shard.grace_ms,
        shard.away_until_ms,
        shard.registered_ms,
    )


def load_view(load: ShardLoad) -> Load:
    """The document of what a shard has of a pallet."""
    capacity = load.capacity if load.HasField("capacity") else None
    return Load(load.shard, load.pallet, load.duties, load.weight, capacity)


def create_pallet(document: PalletSettings) -> PalletChange:
    """The change that creates the pallet; it is refused if there is one already."""
    return PalletChange(create=pallet_row(document))


def update_pallet(document: PalletUpdate) -> PalletChange:
    """The change that replaces the pallet's settings; it is refused if there is no such pallet."""
    return PalletChange(update=pallet_row(document), if_version=document.version)


def create_duty(document: DutyDocument) -> DutyChange:
    """The change that creates the duty; it is refused if there is one already."""
    return changes.create(
        document.pallet,
        document.id,
        document.content() or b"",
        weight=1 if document.weight is None else document.weight,
        synthetic=document.synthetic,
        stationary=document.stationary,
        lazy=document.lazy,
    )


def update_duty(document: DutyUpdate) -> DutyChange:
    """The change that updates the duty; it is refused if there is no such duty."""
    return changes.update(
        document.pallet, document.id, document.content(), weight=document.weight, if_version=document.version
    )


def duty_view(row: rows.Duty, status: DutyStatus | None = None, *, with_payload: bool = False) -> DutyView:
    """The duty's document, with where it is if that is known, and its payload if that is asked for."""
    known: dict[str, Any] = {}
    if status is not None:
        known["assignments"] = [
            Assignment(one.shard, _word(rows.AssignmentState, one.state), one.epoch, one.since_ms, one.reason)
            for one in status.assignments
        ]
        known["unplaced"] = status.unplaced
        if with_payload:
            known |= payload_fields(status.payload)
    return DutyView(
        pallet=row.pallet,
        id=row.id,
        number=row.number,
        version=row.version,
        weight=row.weight,
        reported_weight=row.reported_weight if row.HasField("reported_weight") else None,
        synthetic=row.synthetic,
        stationary=row.stationary,
        lazy=row.lazy,
        payload_bytes=row.payload_bytes,
        created_ms=row.created_ms,
        changed_ms=row.changed_ms,
        pinned_to=row.pinned_to,
        deleting=row.deleting,
        quarantines=[Quarantine(one.shard, one.shard_version, one.reason, one.since_ms) for one in row.quarantines],
        suspicion=_suspicion(row),
        **known,
    )


def _suspicion(row: rows.Duty) -> Suspicion | None:
    said = row.suspicion
    return Suspicion(said.failures, said.shard, said.since_ms, said.retry_ms) if row.HasField("suspicion") else None


def payload_fields(payload: bytes) -> dict[str, Any]:
    """The payload's field: `payload` if it is text, else `payload_base64`."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return {"payload_base64": payload}
    if all(character.isprintable() or character in "\n\r\t" for character in text):
        return {"payload": text}
    return {"payload_base64": payload}
