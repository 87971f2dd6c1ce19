"""Changes of duties, to be made together: `client.change([create("feeds", "bbc", b"…"), delete("feeds", "ft")])`.

Names of pallets and ids of duties have 1 to 256 printable characters, and a pallet's name no slash. A payload is bytes,
up to 1 MiB; a str stands for its UTF-8 form. Each function raises MinkaError(INVALID_ARGUMENT) for what no duty can
have. `if_version` makes a change conditional: it is refused with VERSION_MISMATCH if the duty has another version (0:
any).
"""

from minka.duties._arguments import (
    checked_id,
    checked_pallet,
    checked_payload,
    checked_shard,
    checked_version,
    checked_weight,
    made,
)
from minka.v1.duty_api_pb2 import DutyChange, DutyName, DutyPin, DutySpec


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
    its pallet; a stationary one (not idempotent) is never moved to balance; a lazy one ends when the delegate no longer
    reports it.
    """
    name, weight, content = _name(pallet, duty), checked_weight(weight), checked_payload(payload)
    return made(
        "a duty",
        lambda: DutyChange(
            create=DutySpec(
                pallet=name.pallet,
                id=name.id,
                weight=weight,
                payload=content,
                synthetic=synthetic,
                stationary=stationary,
                lazy=lazy,
            )
        ),
    )


def update(
    pallet: str,
    duty: str,
    payload: bytes | str | None = None,
    *,
    weight: int | None = None,
    if_version: int = 0,
) -> DutyChange:
    """Give a duty another payload or weight; None leaves it as it is."""
    name, change = _name(pallet, duty), DutyChange(if_version=checked_version(if_version))
    change.update.pallet, change.update.id = name.pallet, name.id
    if weight is not None:
        change.update.weight = checked_weight(weight)
    if payload is not None:
        change.update.payload = checked_payload(payload)
    return change


def delete(pallet: str, duty: str, *, if_version: int = 0) -> DutyChange:
    """Delete a duty. It is gone once the shards that have it have released it."""
    return DutyChange(delete=_name(pallet, duty), if_version=checked_version(if_version))


def pin(pallet: str, duty: str, shard: str, *, if_version: int = 0) -> DutyChange:
    """Place a duty on this shard by hand; it stays there until `release`."""
    pin = DutyPin(duty=_name(pallet, duty), shard=checked_shard(shard))
    return DutyChange(pin=pin, if_version=checked_version(if_version))


def release(pallet: str, duty: str, *, if_version: int = 0) -> DutyChange:
    """Let the balancer move a duty again that was pinned."""
    return DutyChange(pin=DutyPin(duty=_name(pallet, duty)), if_version=checked_version(if_version))


def unquarantine(pallet: str, duty: str) -> DutyChange:
    """Let the shards on which a duty could not be attached try again."""
    return DutyChange(unquarantine=_name(pallet, duty))


def _name(pallet: str, duty: str) -> DutyName:
    return DutyName(pallet=checked_pallet(pallet), id=checked_id(duty))
