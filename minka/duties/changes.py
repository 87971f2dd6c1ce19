"""Functions that return changes of duties and pallets. A client sends several changes together:

    client.change([create("feeds", "bbc", "https://…"), delete("feeds", "ft")])
    client.change_pallets([create_pallet("feeds"), delete_pallet("maps")])

Names of pallets and ids of duties have 1 to 256 printable characters, and a pallet's name has no slash. A payload is
bytes, up to 1 MiB; a str stands for its UTF-8 form. A weight is a whole number from 0 to 1,000,000,000,000. Each
function raises MinkaError(INVALID_ARGUMENT) for arguments that can't be sent.

`if_version` makes a change conditional: the cluster refuses it with VERSION_MISMATCH if the duty or pallet has another
version. None means any version. Versions begin at 1, so 0 is refused with INVALID_ARGUMENT.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from minka.duties._arguments import (
    checked_id,
    checked_pallet,
    checked_payload,
    checked_shard,
    checked_version,
    checked_weight,
)
from minka.duties.duty_rows import Pallet
from minka.duties.messages import pallet_row
from minka.engine.arguments import invalid, items
from minka.engine.grpc_calls import clipped
from minka.engine.requests import made
from minka.v1 import duty_api_pb2 as api
from minka.v1.duties_pb2 import Pallet as PalletRow

__all__ = [
    "create",
    "create_pallet",
    "delete",
    "delete_pallet",
    "pin",
    "release",
    "unquarantine",
    "update",
    "update_pallet",
]

_Change = TypeVar("_Change", "DutyChange", "PalletChange")


@dataclass(frozen=True, slots=True)
class DutyChange:
    """A change of one duty, for `Client.change`. Only the functions of `minka.duties.changes` make it."""

    _message: api.DutyChange = field(repr=False)

    def __repr__(self) -> str:
        kind = str(self._message.WhichOneof("change"))
        named = getattr(self._message, kind)
        duty = named.duty if kind == "pin" else named
        verb = "release" if kind == "pin" and not named.shard else kind
        return f"DutyChange({verb} {duty.pallet}/{duty.id})"

    @property
    def payload_bytes(self) -> int:
        """The size of the payload that the change sends. The payloads of one `Client.change` have at most 8 MiB
        together.
        """
        return len(self._message.create.payload) + len(self._message.update.payload)


@dataclass(frozen=True, slots=True)
class PalletChange:
    """A change of one pallet, for `Client.change_pallets`. Only the functions of `minka.duties.changes` make it."""

    _message: api.PalletChange = field(repr=False)

    def __repr__(self) -> str:
        kind = str(self._message.WhichOneof("change"))
        named = getattr(self._message, kind)
        return f"PalletChange({kind} {named if kind == 'delete' else named.id})"


def create(
    pallet: str,
    duty: str,
    payload: bytes | str = b"",
    *,
    weight: int = 1,
    synthetic: bool = False,
    stationary: bool = False,
    lazy: bool = False,
) -> DutyChange:
    """Create a duty. `weight` is in the unit of the shards' capacities. A synthetic duty is on every shard that takes
    its pallet. A stationary duty, once placed, is never moved to balance the shards. A lazy duty ends when the delegate
    no longer reports it.
    """
    name = duty_name(pallet, duty)
    spec = made(
        api.DutySpec,
        pallet=name.pallet,
        id=name.id,
        weight=checked_weight(weight),
        payload=checked_payload(payload),
        synthetic=synthetic,
        stationary=stationary,
        lazy=lazy,
    )
    return DutyChange(api.DutyChange(create=spec))


def update(
    pallet: str,
    duty: str,
    payload: bytes | str | None = None,
    *,
    weight: int | None = None,
    if_version: int | None = None,
) -> DutyChange:
    """Give a duty another payload or weight; None leaves the old one. At least one of the two is needed. The duty's
    quarantines end, as by `unquarantine`.
    """
    name, change = duty_name(pallet, duty), api.DutyChange(if_version=checked_version(if_version))
    if payload is None and weight is None:
        raise invalid(f"the update of {pallet}/{duty} would change nothing: it takes a payload, a weight, or both")
    change.update.pallet, change.update.id = name.pallet, name.id
    if weight is not None:
        change.update.weight = checked_weight(weight)
    if payload is not None:
        change.update.payload = checked_payload(payload)
    return DutyChange(change)


def delete(pallet: str, duty: str, *, if_version: int | None = None) -> DutyChange:
    """Delete a duty. It disappears when all its shards have released it."""
    return DutyChange(api.DutyChange(delete=duty_name(pallet, duty), if_version=checked_version(if_version)))


def pin(pallet: str, duty: str, shard: str, *, if_version: int | None = None) -> DutyChange:
    """Place a duty on this shard by hand: no balancer moves it until it is released. `AsyncClient.pin` describes what
    happens while the shard can't have the duty.
    """
    pin = api.DutyPin(duty=duty_name(pallet, duty), shard=checked_shard(shard))
    return DutyChange(api.DutyChange(pin=pin, if_version=checked_version(if_version)))


def release(pallet: str, duty: str, *, if_version: int | None = None) -> DutyChange:
    """Let the balancer move a pinned duty again."""
    pin = api.DutyPin(duty=duty_name(pallet, duty))
    return DutyChange(api.DutyChange(pin=pin, if_version=checked_version(if_version)))


def unquarantine(pallet: str, duty: str, *, if_version: int | None = None) -> DutyChange:
    """Let a quarantined duty be attached again by the shards that failed to attach it."""
    return DutyChange(api.DutyChange(unquarantine=duty_name(pallet, duty), if_version=checked_version(if_version)))


def create_pallet(pallet: Pallet | str) -> PalletChange:
    """Create a pallet. If only its name is given, the pallet gets the default settings, those of `Pallet(name)`."""
    row = PalletRow(id=checked_pallet(pallet)) if isinstance(pallet, str) else pallet_row(pallet)
    return PalletChange(api.PalletChange(create=row))


def update_pallet(pallet: Pallet, *, if_version: int | None = None) -> PalletChange:
    """Replace all settings of a pallet by those in `pallet`, whose `version`, `created` and `changed` are ignored."""
    return PalletChange(api.PalletChange(update=pallet_row(pallet), if_version=checked_version(if_version)))


def delete_pallet(pallet: str, *, if_version: int | None = None) -> PalletChange:
    """Delete a pallet. The cluster refuses this with PALLET_IN_USE if the pallet still has duties."""
    return PalletChange(api.PalletChange(delete=checked_pallet(pallet), if_version=checked_version(if_version)))


def duty_messages(changes: Iterable[DutyChange]) -> list[api.DutyChange]:
    """The messages that are sent for the changes. Raises MinkaError(INVALID_ARGUMENT) for anything but a change."""
    return [_checked(change, DutyChange)._message for change in items(changes, "changes of duties")]


def pallet_messages(changes: Iterable[PalletChange]) -> list[api.PalletChange]:
    """The messages that are sent for the changes. Raises MinkaError(INVALID_ARGUMENT) for anything but a change."""
    return [_checked(change, PalletChange)._message for change in items(changes, "changes of pallets")]


def _checked(change: _Change, kind: type[_Change]) -> _Change:
    if not isinstance(change, kind):
        raise invalid(f"{clipped(repr(change))} isn't a {kind.__name__}: minka.duties.changes makes them")
    return change


def duty_name(pallet: str, duty: str) -> api.DutyName:
    """The name that is sent for a duty. Raises MinkaError(INVALID_ARGUMENT)."""
    return api.DutyName(pallet=checked_pallet(pallet), id=checked_id(duty))
