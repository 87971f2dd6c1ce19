"""The rows that a client needs to ask for, and the rows that have come."""

import pytest

from minka.engine import wanted_rows
from minka.engine.wanted_rows import Wanted
from minka.v1.admin_pb2 import GetTableRequest
from minka.v1.cluster_pb2 import Keyspace, Partitioning

FLIGHTS = Keyspace(id=1, name="flights", partition_count=5000)
FARES = Keyspace(id=2, name="fares", partition_count=1000)
AUTHORS = Keyspace(id=3, name="authors", partitioning=Partitioning.PARTITIONING_RANGES)
ALL = [FLIGHTS, FARES, AUTHORS]


def asked(request: GetTableRequest | None) -> dict[str, list[int] | None]:
    """Return the slots that the request asks for, by keyspace (None: all slots)."""
    assert request is not None
    return {one.keyspace: list(one.slots) if one.whole_up_to else None for one in request.keyspaces}


def came(wanted: Wanted) -> None:
    request = wanted.missing()
    assert request is not None
    wanted.came(request, ALL)


def test_a_keyspace_that_is_used_is_asked_for_once() -> None:
    wanted = Wanted()
    assert wanted.missing() is None
    wanted.need("fares")
    assert asked(wanted.missing()) == {"fares": []}
    assert not wanted.has("fares")
    came(wanted)
    assert (wanted.has("fares"), wanted.missing()) == (True, None)
    assert not wanted.need_slot("fares", 7), "a small keyspace comes as a whole"
    newer = wanted.newer(12, "c-1")
    assert (newer.known_version, newer.known_cluster, asked(newer)) == (12, "c-1", {"fares": None})


def test_slots_of_a_large_keyspace_are_asked_for_as_they_are_needed() -> None:
    wanted = Wanted()
    wanted.need("flights")
    wanted.need("authors")
    came(wanted)
    assert wanted.missing() is None
    assert not wanted.need_slot("authors", 3), "ranges come as a whole"
    assert wanted.need_slot("flights", 9)
    assert wanted.need_slot("flights", 4)
    request = wanted.missing()
    assert asked(request) == {"flights": [4, 9]}
    assert wanted.need_slot("flights", 5), "slot 5 is missing, although 4 and 9 are on their way"
    assert request is not None
    wanted.came(request, ALL)
    assert not wanted.need_slot("flights", 4)
    assert asked(wanted.missing()) == {"flights": [5]}
    assert asked(wanted.newer(1, "")) == {"flights": [4, 9], "authors": None}


def test_a_client_that_needs_many_slots_asks_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wanted_rows, "MAX_SLOTS", 3)
    wanted = Wanted()
    wanted.need("flights")
    came(wanted)
    for slot in range(3):
        wanted.need_slot("flights", slot)
    assert asked(wanted.missing()) == {"flights": [0, 1, 2]}
    came(wanted)
    assert wanted.need_slot("flights", 3)
    assert asked(wanted.missing()) == {"flights": None}
    came(wanted)
    assert not wanted.need_slot("flights", 4)
    assert asked(wanted.newer(1, "")) == {"flights": None}


def test_slots_that_are_needed_during_a_request_are_asked_for_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wanted_rows, "MAX_SLOTS", 1)
    wanted = Wanted()
    wanted.need("flights")
    came(wanted)
    wanted.need_slot("flights", 1)
    request = wanted.missing()
    wanted.need_slot("flights", 2)
    assert request is not None
    wanted.came(request, ALL)
    assert asked(wanted.missing()) == {"flights": None}


def test_a_missing_keyspace_is_asked_for_until_the_client_forgets_it() -> None:
    wanted = Wanted()
    wanted.need("flight")
    came(wanted)
    assert not wanted.has("flight")
    assert asked(wanted.missing()) == {"flight": []}
    wanted.forget("flight")
    assert wanted.missing() is None
