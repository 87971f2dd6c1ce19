"""Pallets, duties and shards as JSON and YAML documents. REST takes and returns them, `minkactl` prints them, and
`minkactl apply -f` reads them. This module makes them from the dataclasses that clients return.

A document has a duty's payload in `payload` if it is text, else in `payload_base64`, as in the JSON format of
CloudEvents, in which an event has `data` or `data_base64`.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from minka.duties import changes, duty_rows
from minka.duties.changes import DutyChange, PalletChange
from minka.duties.duty_rows import DutyRow, DutyStatus, Pallet, PalletSummary, ShardLoad, ShardStatus
from minka.duties.limits import MAX_ID_CHARS, MAX_WEIGHT
from minka.engine.messages import unix_ms
from minka.errors import Code, MinkaError

_Document = TypeVar("_Document", bound=Struct)

Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARS, description="1 to 256 printable characters")]
PalletId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_ID_CHARS,
        pattern="^[^/]*$",
        description="1 to 256 printable characters, without a slash",
    ),
]
Weight = Annotated[int, Meta(ge=0, le=MAX_WEIGHT, description="in the unit of the shards' capacities")]
Count = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Version = Annotated[
    int | None,
    Meta(
        description="VERSION_MISMATCH refuses the change if the duty or pallet has another version; null: any version",
        extra_json_schema={"minimum": 1},  # `changes` refuses 0, and says why
    ),
]
Milliseconds = Annotated[int, Meta(description="Unix milliseconds")]


class Balancer(Struct, forbid_unknown_fields=True, frozen=True):
    """The way in which the duties of a pallet are spread over the shards that take it."""

    kind: Literal["round_robin", "spill_over", "capacity_workload", "fair_workload"] = "capacity_workload"
    max_difference: Count = 0
    fill_by: Literal["capacity", "weight", "count"] = "capacity"
    fill_limit: Weight = 0
    shard_order: tuple[Id, ...] = ()
    pre_sort: Literal["weight", "date"] = "weight"


class Canary(Struct, forbid_unknown_fields=True, frozen=True):
    """The share of the duties that should be on shards of one version."""

    version: Id
    percent: Annotated[int, Meta(ge=1, le=100)]


class PalletSettings(Struct, forbid_unknown_fields=True, frozen=True):
    """The settings of a pallet that clients choose. An update replaces all of them."""

    id: PalletId
    balancer: Balancer = Balancer()
    manual: bool = False
    on_failure: Literal["reattach", "leave"] = "reattach"
    warm: bool = False
    moves_per_shard: Count = 0
    canary: Canary | None = None


class PalletUpdate(PalletSettings, forbid_unknown_fields=True, frozen=True):
    """New settings of a pallet, which replace all former ones."""

    version: Version = None


class Unplaced(Struct, frozen=True):
    """A duty that no shard has."""

    id: str
    reason: str


class Load(Struct, frozen=True):
    """The duties of a pallet on one shard; `capacity` is null if the shard states none."""

    shard: str
    pallet: str
    duties: int
    weight: int
    capacity: int | None


class PalletView(PalletSettings, frozen=True, kw_only=True):
    """A pallet with its settings, and with the sums of its duties if these are known."""

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
    """The name of a duty, perhaps with the version that the duty must have."""

    pallet: PalletId
    id: Id
    version: Version = None


class _WithPayload(Struct, forbid_unknown_fields=True, frozen=True):
    """The settings of a duty that clients choose."""

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
    """A duty to be changed; fields that are left out stay as they are."""

    version: Version = None


class Assignment(Struct, frozen=True):
    """A shard that has the duty, or is about to get it. `epoch` is the fencing token."""

    shard: str
    state: str
    epoch: int
    since_ms: Milliseconds
    reason: str


class Quarantine(Struct, frozen=True):
    """A shard that doesn't get the duty, since attaching the duty failed there. If `shard` is null, no shard of
    `shard_version` gets the duty.
    """

    shard: str | None
    shard_version: str
    reason: str
    since_ms: Milliseconds


class Suspicion(Struct, frozen=True):
    """Shards that have failed while they were attaching the duty: their number, the last of them, and the time before
    which no shard gets the duty again (0: no such time).
    """

    failures: int
    shard: str
    since_ms: Milliseconds
    retry_ms: Milliseconds


class DutyView(Struct, frozen=True, kw_only=True):
    """A duty, with its assignments if these are known."""

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
    pinned_to: str | None
    deleting: bool
    quarantines: list[Quarantine]
    suspicion: Suspicion | None
    assignments: list[Assignment] | UnsetType = UNSET
    unplaced: str | UnsetType = UNSET


class ShardView(Struct, frozen=True):
    """A process that hosts duties. `score` is 0 to 100; with a low score the shard gets only duties that no other shard
    takes.
    """

    name: str
    node: str | None
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


def pallet(document: PalletSettings) -> Pallet:
    """The pallet with the settings of the document."""
    balancer, canary = document.balancer, document.canary
    return Pallet(
        document.id,
        balancer=duty_rows.Balancer(
            kind=duty_rows.BalancerKind(balancer.kind),
            max_difference=balancer.max_difference,
            fill_by=duty_rows.FillBy(balancer.fill_by),
            fill_limit=balancer.fill_limit,
            shard_order=balancer.shard_order,
            pre_sort=duty_rows.PreSort(balancer.pre_sort),
        ),
        manual=document.manual,
        on_failure=duty_rows.OnFailure(document.on_failure),
        warm=document.warm,
        moves_per_shard=document.moves_per_shard,
        canary=None if canary is None else duty_rows.Canary(canary.version, canary.percent),
    )


def _made(kind: type[_Document], record: Any, **given: Any) -> _Document:
    """A document of this kind. `given` has some of its fields; the others come from the record's fields of the same
    names.
    """
    own = (name for name in kind.__struct_fields__ if name not in given)
    return kind(**given, **{name: _value(record, name) for name in own})


def _value(record: Any, name: str) -> Any:
    moment = name.removesuffix("_ms")
    return unix_ms(getattr(record, moment)) if not hasattr(record, name) else getattr(record, name)


def _list(kind: type[_Document], records: Iterable[Any]) -> list[_Document]:
    return [_made(kind, record) for record in records]


def _settings(pallet: Pallet) -> dict[str, Any]:
    canary = None if pallet.canary is None else _made(Canary, pallet.canary)
    return {"balancer": _made(Balancer, pallet.balancer), "canary": canary}


def pallet_settings(pallet: Pallet) -> PalletSettings:
    """The document of a pallet's settings."""
    return _made(PalletSettings, pallet, **_settings(pallet))


_COUNTED: Final = ("duties", "attached", "weight", "unplaced_count", "quarantined", "unplaced", "loads", "held_back")


def pallet_view(pallet: Pallet, summary: PalletSummary | None = None) -> PalletView:
    """The pallet's document, with the sums of its duties if these are known."""
    counted: dict[str, Any] = dict.fromkeys(_COUNTED, UNSET)
    if summary is not None:
        counted = {name: getattr(summary, name) for name in _COUNTED}
        counted |= {"unplaced": _list(Unplaced, summary.unplaced), "loads": _list(Load, summary.loads)}
    return _made(PalletView, pallet, **_settings(pallet), **counted)


def shard_view(status: ShardStatus) -> ShardView:
    """The shard's document, with the numbers of its duties."""
    return _made(ShardView, status, loads=_list(Load, status.loads))


def load_view(load: ShardLoad) -> Load:
    """The document with the numbers of a pallet's duties on one shard."""
    return _made(Load, load)


def create_pallet(document: PalletSettings) -> PalletChange:
    """The change that creates the pallet. The cluster refuses it if the pallet exists with other settings."""
    return changes.create_pallet(pallet(document))


def update_pallet(document: PalletUpdate) -> PalletChange:
    """The change that replaces the pallet's settings. The cluster refuses it if there is no such pallet."""
    return changes.update_pallet(pallet(document), if_version=document.version)


def create_duty(document: DutyDocument) -> DutyChange:
    """The change that creates the duty. The cluster refuses it if the duty exists."""
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
    """The change that updates the duty. The cluster refuses it if there is no such duty."""
    return changes.update(
        document.pallet, document.id, document.content(), weight=document.weight, if_version=document.version
    )


def duty_view(row: DutyRow | DutyStatus, *, with_payload: bool = False) -> DutyView:
    """The duty's document, with its assignments if these are known, and with its payload if `with_payload`."""
    duty = row.duty
    known: dict[str, Any] = {"assignments": UNSET, "unplaced": UNSET, "payload": UNSET, "payload_base64": UNSET}
    if isinstance(row, DutyStatus):
        known |= {"assignments": _list(Assignment, row.assignments), "unplaced": row.unplaced}
    if with_payload:
        known |= payload_fields(duty.payload)
    own = {name: getattr(duty, name) for name in _OF_A_DUTY}
    suspicion = None if row.suspicion is None else _made(Suspicion, row.suspicion)
    return _made(DutyView, row, quarantines=_list(Quarantine, row.quarantines), suspicion=suspicion, **own, **known)


_OF_A_DUTY: Final = ("pallet", "id", "number", "version", "weight", "synthetic", "stationary", "lazy")


def payload_fields(payload: bytes) -> dict[str, Any]:
    """The payload's field: `payload` if it is text, else `payload_base64`."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return {"payload_base64": payload}
    if all(character.isprintable() or character in "\n\r\t" for character in text):
        return {"payload": text}
    return {"payload_base64": payload}
