"""Changes of duties, to be made together: `client.change([create("feeds", "bbc", b"…"), delete("feeds", "ft")])`.

Names of pallets and ids of duties have 1 to 256 printable characters, and a pallet's name no slash. A payload is bytes,
up to 1 MiB; a str stands for its UTF-8 form. Each function raises MinkaError(INVALID_ARGUMENT) for what can't be sent
at all. `if_version` makes a change conditional: it is refused with VERSION_MISMATCH if the duty has another version (0:
any).
"""

from typing import Any

from minka.errors import Code, MinkaError
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
    return _made(
        lambda: DutyChange(
            create=DutySpec(
                pallet=pallet,
                id=duty,
                weight=weight,
                payload=_bytes(payload),
                synthetic=synthetic,
                stationary=stationary,
                lazy=lazy,
            )
        )
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
    content = None if payload is None else _bytes(payload)
    return _made(
        lambda: DutyChange(
            update=DutySpec(pallet=pallet, id=duty, weight=weight, payload=content), if_version=if_version
        )
    )


def delete(pallet: str, duty: str, *, if_version: int = 0) -> DutyChange:
    """Delete a duty. It is gone once the shards that have it have released it."""
    return _made(lambda: DutyChange(delete=DutyName(pallet=pallet, id=duty), if_version=if_version))


def pin(pallet: str, duty: str, shard: str, *, if_version: int = 0) -> DutyChange:
    """Place a duty on this shard by hand; it stays there until `release`."""
    name = DutyName(pallet=pallet, id=duty)
    return _made(lambda: DutyChange(pin=DutyPin(duty=name, shard=shard), if_version=if_version))


def release(pallet: str, duty: str, *, if_version: int = 0) -> DutyChange:
    """Let the balancer move a duty again that was pinned."""
    return pin(pallet, duty, "", if_version=if_version)


def unquarantine(pallet: str, duty: str) -> DutyChange:
    """Let the shards on which a duty could not be attached try again."""
    return _made(lambda: DutyChange(unquarantine=DutyName(pallet=pallet, id=duty)))


def _bytes(payload: bytes | str) -> bytes:
    if isinstance(payload, str):
        return payload.encode()
    if type(payload) is not bytes:
        raise MinkaError(Code.INVALID_ARGUMENT, f"a payload is {type(payload).__name__}, not bytes or str")
    return payload


def _made(make: Any) -> DutyChange:
    """The change. Protobuf refuses a field of the wrong type or out of its range: that raises INVALID_ARGUMENT."""
    try:
        change: DutyChange = make()
    except (TypeError, ValueError) as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"no change of a duty: {error}") from error
    return change
