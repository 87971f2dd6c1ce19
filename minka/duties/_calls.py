"""The calls of both clients of duties: what is asked, and whether it may be asked twice."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from minka.duties._arguments import checked_id, checked_pallet, checked_shard, checked_version, made
from minka.engine.arguments import invalid, items
from minka.engine.grpc_calls import clipped
from minka.v1 import duty_api_pb2 as api
from minka.v1.duties_pb2 import Pallet
from minka.v1.duty_api_pb2 import Consistency, DutyName

_Change = TypeVar("_Change", api.DutyChange, api.PalletChange)
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


def level(name: Any) -> Consistency.ValueType:
    """The consistency of this name. Raises MinkaError(INVALID_ARGUMENT) for another name."""
    if not isinstance(name, str) or name not in _LEVELS:
        raise invalid(f"consistency {clipped(repr(name))}: one of {', '.join(_LEVELS)}")
    return _LEVELS[name]


# Each of these raises MinkaError(INVALID_ARGUMENT) for what can't be asked.


def change_duties(changes: Iterable[api.DutyChange], consistency: str) -> Call:
    """The call that makes all of these changes, or none."""
    wanted = _all_of(changes, api.DutyChange, "changes of duties")
    request = api.ChangeDutiesRequest(changes=wanted, consistency=level(consistency))
    return Call("ChangeDuties", request, repeatable=False)


def change_pallets(changes: Iterable[api.PalletChange], consistency: str) -> Call:
    """The call that makes all of these changes, or none."""
    wanted = _all_of(changes, api.PalletChange, "changes of pallets")
    request = api.ChangePalletsRequest(changes=wanted, consistency=level(consistency))
    return Call("ChangePallets", request, repeatable=False)


def create_pallet(pallet: Pallet | str) -> api.PalletChange:
    """The change that creates a pallet; if only its name is given, with the default settings."""
    if isinstance(pallet, Pallet):
        return api.PalletChange(create=pallet)
    return api.PalletChange(create=Pallet(id=checked_pallet(pallet)))


def update_pallet(pallet: Pallet, if_version: int) -> api.PalletChange:
    """The change that replaces a pallet's settings."""
    if not isinstance(pallet, Pallet):
        raise invalid(f"the pallet is {type(pallet).__name__}, not a row of class Pallet")
    return api.PalletChange(update=pallet, if_version=checked_version(if_version))


def delete_pallet(pallet: str, if_version: int) -> api.PalletChange:
    """The change that deletes a pallet."""
    return api.PalletChange(delete=checked_pallet(pallet), if_version=checked_version(if_version))


def duty_names(pairs: Iterable[tuple[str, str]]) -> list[DutyName]:
    """The names of these duties, which are given by pallet and id."""
    return [_duty_name(pair) for pair in items(pairs, "pairs of a pallet and the id of a duty")]


def _duty_name(pair: Any) -> DutyName:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise invalid(f"{clipped(repr(pair))} is no pair of a pallet and the id of a duty")
    return DutyName(pallet=checked_pallet(pair[0]), id=checked_id(pair[1]))


def get_duties(names: Sequence[DutyName], with_payloads: bool) -> Call:
    """The call for exactly these duties."""
    request = made("a request", lambda: api.GetDutiesRequest(names=names, with_payloads=with_payloads))
    return Call("GetDuties", request)


def list_duties(
    pallet: str, shard: str, unplaced: bool, quarantined: bool, with_payloads: bool, after: int, limit: int
) -> Call:
    """The call for a page of at most `limit` duties, which begins after the one with the number `after`."""
    pallet = pallet and checked_pallet(pallet)
    shard = shard and checked_shard(shard)
    request = made(
        "a request",
        lambda: api.GetDutiesRequest(
            pallet=pallet,
            shard=shard,
            unplaced=unplaced,
            quarantined=quarantined,
            with_payloads=with_payloads,
            after=after,
            limit=limit,
        ),
    )
    return Call("GetDuties", request)


def explain_duty(pallet: str, duty: str) -> Call:
    """The call for why a duty is where it is."""
    return Call("ExplainDuty", api.ExplainDutyRequest(name=_duty_name((pallet, duty))))


def get_pallets(ids: Iterable[str]) -> Call:
    """The call for these pallets, or all."""
    checked = [checked_pallet(one) for one in items(ids, "names of pallets")]
    return Call("GetPallets", api.GetPalletsRequest(ids=checked))


def get_shards(names: Iterable[str]) -> Call:
    """The call for these shards, or all."""
    checked = [checked_shard(one) for one in items(names, "names of shards")]
    return Call("GetShards", api.GetShardsRequest(names=checked))


def compare_pallet(pallet: str) -> Call:
    """The call for what each balancer would make of a pallet."""
    return Call("ComparePallet", api.ComparePalletRequest(pallet=checked_pallet(pallet)))


def plan_rebalance(pallet: str, reason: str) -> Call:
    """The call for the plan of a pallet's balancer."""
    name = checked_pallet(pallet)
    request = made("a request", lambda: api.PlanRebalanceRequest(pallet=name, reason=reason))
    return Call("PlanRebalance", request)


def _all_of(given: Iterable[_Change], kind: type[_Change], wanted: str) -> list[_Change]:
    changes = list(items(given, wanted))
    for change in changes:
        if not isinstance(change, kind):
            raise invalid(f"{wanted} are wanted, and {clipped(repr(change))} is none")
    return changes
