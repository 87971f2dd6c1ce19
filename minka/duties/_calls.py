"""The calls of both clients of duties: what is asked, and whether it may be asked twice."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from minka.errors import Code, MinkaError
from minka.v1 import duty_api_pb2 as api
from minka.v1.duties_pb2 import Pallet
from minka.v1.duty_api_pb2 import Consistency, DutyName

Level = Literal["leader", "quorum", "voters", "all"]

_LEVELS: Final = {
    "leader": Consistency.CONSISTENCY_LEADER,
    "quorum": Consistency.CONSISTENCY_QUORUM,
    "voters": Consistency.CONSISTENCY_VOTERS,
    "all": Consistency.CONSISTENCY_ALL,
}


@dataclass(frozen=True, slots=True)
class Call:
    """An rpc of the service Duties with its request; one that only reads may be repeated."""

    rpc: str
    request: Any
    repeatable: bool = True


def level(name: str) -> Consistency.ValueType:
    """The consistency of this name. Raises MinkaError(INVALID_ARGUMENT) for another name."""
    if name not in _LEVELS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"consistency {name!r}: one of {', '.join(_LEVELS)}")
    return _LEVELS[name]


def change_duties(changes: Iterable[api.DutyChange], consistency: str) -> Call:
    """The call that makes all of these changes, or none."""
    return Call(
        "ChangeDuties", api.ChangeDutiesRequest(changes=changes, consistency=level(consistency)), repeatable=False
    )


def change_pallets(changes: Iterable[api.PalletChange], consistency: str) -> Call:
    """The call that makes all of these changes, or none."""
    request = api.ChangePalletsRequest(changes=changes, consistency=level(consistency))
    return Call("ChangePallets", request, repeatable=False)


def create_pallet(pallet: Pallet | str) -> api.PalletChange:
    """The change that creates a pallet; if only its name is given, with the default settings."""
    return api.PalletChange(create=Pallet(id=pallet) if isinstance(pallet, str) else pallet)


def get_duties(names: Sequence[tuple[str, str]], with_payloads: bool) -> Call:
    """The call for exactly these duties, by pallet and id."""
    wanted = [DutyName(pallet=pallet, id=id_) for pallet, id_ in names]
    return Call("GetDuties", api.GetDutiesRequest(names=wanted, with_payloads=with_payloads))


def list_duties(pallet: str, shard: str, unplaced: bool, with_payloads: bool, after: int, limit: int) -> Call:
    """The call for a page of at most `limit` duties, which begins after the one with the number `after`."""
    request = api.GetDutiesRequest(
        pallet=pallet, shard=shard, unplaced=unplaced, with_payloads=with_payloads, after=after, limit=limit
    )
    return Call("GetDuties", request)
