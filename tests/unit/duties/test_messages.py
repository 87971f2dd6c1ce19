"""Messages about duties as dataclasses and back: nothing is lost, and a newer node's values are read as unknown."""

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from google.protobuf.descriptor import Descriptor

import minka.duties
from minka.duties import (
    AssignmentState,
    Balancer,
    BalancerKind,
    Canary,
    Duty,
    FillBy,
    OnFailure,
    Pallet,
    PreSort,
    ShardState,
    Suspicion,
    documents,
    messages,
)
from minka.engine.messages import Word, word
from minka.errors import Code, MinkaError
from minka.testing import held as held_in_a_test
from minka.v1 import duties_pb2 as rows
from minka.v1 import duty_api_pb2 as api
from minka.v1.shards_pb2 import HeldDuty

# OTHER_NAMES: for each message whose dataclasses have other names, these names. LEFT_OUT: for each message, the fields
# that its dataclasses don't have.
OTHER_NAMES = {
    "Duty": ("DutyRow", "Duty"),
    "DutyStatus": ("DutyStatus", "Duty"),
    "DutyQuarantine": ("Quarantine",),
    "DutySuspicion": ("Suspicion",),
    "Shard": ("ShardStatus",),
    "DutyMoved": ("DutyMove",),
    "GetShardsResponse": ("Shards",),
    "ExplainDutyResponse": ("DutyExplanation",),
    "HeldDuty": ("Duty",),
}
LEFT_OUT = {
    "Duty": {"payload_id", "was_attached"},  # records that only the cluster needs
    "Assignment": {"duty", "was_attached"},  # the status has the duty; only the cluster needs `was_attached`
    "Shard": {
        "incarnation",
        "penalty",
        "penalty_ms",
        "crash_penalty",
        "version_since_ms",
        "pallets",
    },  # clients get the score and the loads instead
    "ShardStatus": {"shard"},  # ShardStatus has the fields of Shard itself
    "HeldDuty": {"duty"},  # this field is the duty's number
}
LISTS = {"ChangePalletsResponse", "ChangeDutiesResponse", "GetPalletsResponse", "GetDutiesResponse"}
LISTS |= {"ComparePalletResponse"}  # for these messages, clients return plain lists


def answered(descriptor: Descriptor) -> Iterator[Descriptor]:
    """Yield the message, and the messages of its fields, recursively."""
    yield descriptor
    for one in descriptor.fields:
        is_left_out = one.name in LEFT_OUT.get(descriptor.name, ()) and one.name != "shard"
        if one.message_type is not None and not is_left_out:
            yield from answered(one.message_type)


def answers() -> dict[str, Descriptor]:
    """Return all messages in answers about duties. Plans are left out, since they belong to `minka.admin`."""
    service = api.DESCRIPTOR.services_by_name["Duties"]
    tops = [method.output_type for method in service.methods if method.output_type.name != "Plan"]
    return {one.name: one for top in (*tops, HeldDuty.DESCRIPTOR) for one in answered(top)}


@pytest.mark.parametrize("name", sorted(answers().keys() - LISTS))
def test_every_field_of_a_message_is_in_its_dataclass(name: str) -> None:
    kinds = [getattr(minka.duties, kind) for kind in OTHER_NAMES.get(name, (name,))]
    known = {one.name for kind in kinds for one in dataclasses.fields(kind)} | LEFT_OUT.get(name, set())
    assert {one.name.removesuffix("_ms") for one in answers()[name].fields} <= {
        one.removesuffix("_ms") for one in known
    }


WORDS: list[tuple[type[Word], Any]] = [
    (BalancerKind, rows.BalancerKind),
    (FillBy, rows.FillBy),
    (PreSort, rows.PreSort),
    (OnFailure, rows.OnFailure),
    (ShardState, rows.ShardState),
    (AssignmentState, rows.AssignmentState),
]


@pytest.mark.parametrize(("words", "enum"), WORDS)
def test_every_member_of_an_enum_is_a_word(words: type[Word], enum: Any) -> None:
    named = {word(enum.DESCRIPTOR, number) for number in enum.values()} - {"unspecified"}
    assert {one.value for one in words} == named | {"unknown"}


def test_a_value_from_a_newer_node_is_read_as_unknown() -> None:
    newer = rows.Pallet(id="feeds", balancer=rows.Balancer(kind=99, fill_by=99, pre_sort=99), on_failure=99)  # type: ignore[arg-type]
    pallet = messages.pallet(newer)
    assert (pallet.balancer.kind, pallet.balancer.fill_by) == (BalancerKind.UNKNOWN, FillBy.UNKNOWN)
    assert (pallet.balancer.pre_sort, pallet.on_failure) == (PreSort.UNKNOWN, OnFailure.UNKNOWN)
    assert msgspec.to_builtins(documents.pallet_view(pallet))["balancer"]["kind"] == "unknown"
    shard = rows.Shard(name="one", state=99)  # type: ignore[arg-type]
    assert messages.shard_status(api.ShardStatus(shard=shard)).state is ShardState.UNKNOWN
    held = rows.Assignment(shard="one", state=99)  # type: ignore[arg-type]
    (assignment,) = messages.duty_status(api.DutyStatus(assignments=[held])).assignments
    assert assignment.state is AssignmentState.UNKNOWN


def test_an_unknown_value_is_not_sent() -> None:
    pallet = Pallet("feeds", on_failure=OnFailure.UNKNOWN)
    with pytest.raises(MinkaError, match=r"on_failure is .*, not one of reattach, leave") as caught:
        messages.pallet_row(pallet)
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_a_pallets_settings_survive_conversion_to_a_message_and_back() -> None:
    for kind in set(BalancerKind) - {BalancerKind.UNKNOWN}:
        balancer = Balancer(kind, 3, FillBy.COUNT, 20, ("one", "two"), PreSort.DATE)
        pallet = Pallet("feeds", balancer, True, OnFailure.LEAVE, True, 7, Canary("2", 5))
        assert messages.pallet(messages.pallet_row(pallet)) == pallet
        assert documents.pallet(documents.pallet_settings(pallet)) == pallet
    assert messages.pallet(rows.Pallet(id="feeds")) == Pallet("feeds"), "missing fields have their defaults"
    assert messages.pallet(messages.pallet_row(Pallet("feeds"))) == Pallet("feeds")


def test_a_duty_is_read_with_all_its_recorded_fields() -> None:
    failed = rows.DutyQuarantine(shard="two", shard_version="7", reason="no", since_ms=1_700_000_000_123)
    row = rows.Duty(number=3, pallet="feeds", id="bbc", version=4, weight=5, stationary=True, payload_bytes=3)
    row.reported_weight, row.pinned_to, row.created_ms, row.changed_ms = 0, "one", 1, 4_102_444_799_999
    row.quarantines.append(failed)
    row.suspicion.failures, row.suspicion.retry_ms = 2, 5
    status = messages.duty_status(api.DutyStatus(duty=row, payload=b"abc", unplaced="no shard"))
    duty = Duty(number=3, pallet="feeds", id="bbc", payload=b"abc", version=4, weight=5, stationary=True)
    assert status.duty == duty
    assert not status.duty.is_held()
    assert (status.reported_weight, status.changed) == (0, datetime(2099, 12, 31, 23, 59, 59, 999_000, UTC))
    document = documents.duty_view(status, with_payload=True)
    assert (document.payload, document.created_ms, document.changed_ms) == ("abc", 1, 4_102_444_799_999)
    assert [one.since_ms for one in document.quarantines] == [1_700_000_000_123]
    assert document.suspicion == documents.Suspicion(2, "", 0, 5)
    assert messages.duty_row(rows.Duty(number=3)).reported_weight is None
    assert messages.duty_row(rows.Duty(number=3)).suspicion is None
    once = messages.duty_row(rows.Duty(number=3, suspicion=rows.DutySuspicion(failures=1, since_ms=4)))
    assert once.suspicion == Suspicion(1, "", datetime(1970, 1, 1, 0, 0, 0, 4000, UTC), None)


def test_duties_are_equal_by_number_and_epoch() -> None:
    held = HeldDuty(duty=3, epoch=7, pallet="feeds", id="bbc", stationary=True)
    duty = messages.held_duty(held, lambda number, epoch: (number, epoch) == (3, 7))
    assert duty.stationary
    assert duty.is_held()
    assert {duty} == {Duty(number=3, epoch=7, pallet="maps", id="x")}
    assert duty != Duty(number=3, epoch=8, pallet="feeds", id="bbc")
    assert not Duty(number=3, epoch=7, pallet="feeds", id="bbc").is_held()
    assert held_in_a_test(duty, lambda: False) == duty
    assert not held_in_a_test(duty, lambda: False).is_held()


def test_a_clients_duties_are_equal_if_all_is() -> None:
    duty = Duty(number=3, pallet="feeds", id="bbc")
    assert {duty} == {Duty(number=3, pallet="feeds", id="bbc")}
    changes: list[dict[str, Any]] = [{"payload": b"abc"}, {"version": 2}, {"weight": 7}, {"lazy": True}, {"epoch": 7}]
    for changed in changes:
        assert dataclasses.replace(duty, **changed) != duty
