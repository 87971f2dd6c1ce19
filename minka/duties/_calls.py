"""Makes the requests that the clients of duties send, each with the name of its rpc."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from minka.duties._arguments import check_size, checked_pallet, checked_shard
from minka.duties.changes import DutyChange, PalletChange, duty_messages, duty_name, pallet_messages
from minka.duties.limits import MAX_CHANGES, MAX_REQUEST_BYTES
from minka.engine.arguments import invalid, items
from minka.engine.grpc_calls import clipped
from minka.engine.requests import made
from minka.v1 import duty_api_pb2 as api
from minka.v1.duty_api_pb2 import Consistency, DutyName

_LEVELS: Final = {
    "leader": Consistency.CONSISTENCY_LEADER,
    "quorum": Consistency.CONSISTENCY_QUORUM,
    "voters": Consistency.CONSISTENCY_VOTERS,
    "all": Consistency.CONSISTENCY_ALL,
}


@dataclass(frozen=True, slots=True)
class Call:
    """A request, and the rpc of the service Duties that takes the request. A call that only reads is repeatable."""

    rpc: str
    request: Any
    repeatable: bool = True


# Each function below raises MinkaError(INVALID_ARGUMENT) for arguments that can't be sent.


def change_duties(changes: Iterable[DutyChange], consistency: str) -> Call:
    """The call that makes all of these changes, or none. Raises TOO_LARGE."""
    messages = duty_messages(changes)
    check_size("a request", len(messages), MAX_CHANGES, "changes")
    payloads = sum(len(one.create.payload) + len(one.update.payload) for one in messages)
    check_size("a request", payloads, MAX_REQUEST_BYTES, "bytes of payloads")
    request = api.ChangeDutiesRequest(changes=messages, consistency=_level(consistency))
    return Call("ChangeDuties", request, repeatable=False)


def change_pallets(changes: Iterable[PalletChange], consistency: str) -> Call:
    """The call that makes all of these changes, or none. Raises TOO_LARGE."""
    messages = pallet_messages(changes)
    check_size("a request", len(messages), MAX_CHANGES, "changes")
    request = api.ChangePalletsRequest(changes=messages, consistency=_level(consistency))
    return Call("ChangePallets", request, repeatable=False)


def _level(name: Any) -> Consistency.ValueType:
    if not isinstance(name, str) or name not in _LEVELS:
        raise invalid(f"consistency is {clipped(repr(name))}, not one of {', '.join(_LEVELS)}")
    return _LEVELS[name]


def duty_names(pairs: Iterable[tuple[str, str]]) -> list[DutyName]:
    """The names of duties as a request has them, from pairs of a pallet and an id. Raises TOO_LARGE."""
    names = [_name_of(pair) for pair in items(pairs, "pairs of a pallet and the id of a duty")]
    check_size("a request", len(names), MAX_CHANGES, "names")
    return names


def _name_of(pair: Any) -> DutyName:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise invalid(f"{clipped(repr(pair))} isn't a pair of a pallet and the id of a duty")
    return duty_name(*pair)


def get_duties(names: Sequence[DutyName], with_payloads: bool) -> Call:
    """The call for the duties with these names."""
    request = made(api.GetDutiesRequest, names=names, with_payloads=with_payloads)
    return Call("GetDuties", request)


def list_duties(
    pallet: str | None,
    shard: str | None,
    unplaced: bool,
    quarantined: bool,
    with_payloads: bool,
    after: int,
    limit: int,
) -> Call:
    """The call for a page: the first `limit` duties with numbers greater than `after`."""
    request = made(
        api.GetDutiesRequest,
        pallet="" if pallet is None else checked_pallet(pallet),
        shard="" if shard is None else checked_shard(shard),
        unplaced=unplaced,
        quarantined=quarantined,
        with_payloads=with_payloads,
        after=after,
        limit=limit,
    )
    return Call("GetDuties", request)


def explain_duty(pallet: str, duty: str) -> Call:
    """The call that explains why some shards have the duty and others don't."""
    return Call("ExplainDuty", api.ExplainDutyRequest(name=duty_name(pallet, duty)))


def get_pallets(ids: Iterable[str]) -> Call:
    """The call for these pallets, or for all pallets if `ids` is empty."""
    checked = [checked_pallet(one) for one in items(ids, "names of pallets")]
    return Call("GetPallets", api.GetPalletsRequest(ids=checked))


def get_shards(names: Iterable[str]) -> Call:
    """The call for these shards, or for all shards if `names` is empty."""
    checked = [checked_shard(one) for one in items(names, "names of shards")]
    return Call("GetShards", api.GetShardsRequest(names=checked))


def compare_pallet(pallet: str) -> Call:
    """The call that compares how each kind of balancer would spread the pallet's duties."""
    return Call("ComparePallet", api.ComparePalletRequest(pallet=checked_pallet(pallet)))


def plan_rebalance(pallet: str, reason: str) -> Call:
    """The call for a plan of the moves that the pallet's balancer would make."""
    return Call("PlanRebalance", made(api.PlanRebalanceRequest, pallet=checked_pallet(pallet), reason=reason))
