"""The controller's decisions about loads. A load's commit is recorded in pieces: either all of them or none."""

import pytest

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import HashFunction
from minka.v1.coordinator_pb2 import FinishSplitRequest, ProposeSplitRequest
from minka.v1.load_api_pb2 import (
    AbortLoadRequest,
    BeginLoadRequest,
    CommitLoadRequest,
    FinishedPart,
    FinishLoadPartsRequest,
    TouchLoadRequest,
)
from minka.v1.loads_pb2 import Load, LoadDigest, LoadFile, LoadState
from minkad.core.controller.decision import Command
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.loads import MAX_UNENDED, AbortAbandoned
from minkad.core.controller.splits import Split
from minkad.core.state import KEPT_LOADS, State
from minkad.core.state.display_names import PAYLOADS_KEYSPACE
from tests.unit.core.deciding import decided
from tests.unit.core.model import Controller
from tests.unit.core.ranges import by_ranges

_S = LoadState


NOW = 1_000_000
HASH = HashFunction.HASH_FUNCTION_MURMUR3


def cluster() -> State:
    c = Controller()
    c.register("athens", "byzantium", "cyrene")
    c.keyspace("hashed", 4, replicas=3)
    by_ranges(c, [b"m"], 3, "ranged")
    return c.state


def run(state: State, command: Command, now: int = NOW) -> None:
    for record in decided(state, command, now):
        state.apply(record)


def refused(state: State, command: Command, code: Code) -> MinkaError:
    before = state.to_snapshot()
    with pytest.raises(MinkaError) as caught:
        decided(state, command, NOW)
    assert caught.value.code is code, caught.value
    assert state.to_snapshot() == before
    return caught.value


def begun(state: State, load_id: str = "one", keyspace: str = "hashed", now: int = NOW) -> Load:
    run(state, BeginLoadRequest(load_id=load_id, keyspace=keyspace, requested_by="test"), now)
    return load_of(state, load_id)


def load_of(state: State, load_id: str) -> Load:
    load = state.loads.with_id(load_id)
    assert load is not None
    return load


def files_of(state: State, keyspace: str) -> list[LoadFile]:
    found = state.keyspace_named(keyspace)
    assert found is not None
    return [
        LoadFile(
            partition_id=row.id,
            name=f"p{row.id}",
            slot=row.slot,
            start_key=row.start_key,
            end_key=row.end_key,
            bytes=100,
            rows=10,
            checksum=row.id,
            digest=LoadDigest(bytes=50),
        )
        for row in state.partitions.values()
        if row.keyspace_id == found.id
    ]


def finish(state: State, load: Load, partition_ids: list[int], node: str = "", epoch: int = 0) -> None:
    for partition_id in partition_ids:
        row = state.partitions[partition_id]
        part = FinishedPart(load_number=load.number, partition_id=partition_id, leader_epoch=epoch or row.leader_epoch)
        run(state, FinishLoadPartsRequest(node_id=node or row.leader, finished=[part]), NOW + 9)


def test_a_load_from_its_begin_to_its_end() -> None:
    state = cluster()
    load = begun(state)
    assert (load.number, load.state) == (1, _S.LOAD_STATE_STAGING)
    files = files_of(state, "hashed")
    run(state, CommitLoadRequest(load_id="one", files=files), NOW + 5)
    load = load_of(state, "one")
    assert (load.state, load.parts, load.rows, load.bytes) == (_S.LOAD_STATE_COMMITTED, 4, 40, 400)
    assert {part.name for id_ in state.loads.due for part in state.loads.due_parts(id_)} == {f.name for f in files}
    ids = [file.partition_id for file in files]
    finish(state, load, ids[:3])
    assert (load_of(state, "one").parts_done, list(state.loads.due)) == (3, ids[3:])
    finish(state, load, ids[3:])
    assert load_of(state, "one").state == _S.LOAD_STATE_DONE
    assert not state.loads.parts
    assert not state.loads.due


def test_begin_is_idempotent_by_id() -> None:
    state = cluster()
    begun(state)
    assert (
        decided(
            state,
            BeginLoadRequest(load_id="one", keyspace="hashed", requested_by="somebody else", job="another job"),
            NOW,
        )
        == []
    )
    refused(state, BeginLoadRequest(load_id="one", keyspace="ranged", requested_by="test"), Code.LOAD_EXISTS)
    refused(state, BeginLoadRequest(load_id="two", keyspace="absent", requested_by="test"), Code.UNKNOWN_KEYSPACE)
    refused(
        state,
        BeginLoadRequest(load_id="two", keyspace="hashed", requested_by="test", job="é" * 5000),
        Code.INVALID_ARGUMENT,
    )
    run(state, CreateKeyspace(PAYLOADS_KEYSPACE, 1, HASH, replicas=3))
    refused(
        state, BeginLoadRequest(load_id="two", keyspace=PAYLOADS_KEYSPACE, requested_by="test"), Code.INVALID_ARGUMENT
    )


def test_the_number_of_loads_that_have_not_ended_is_limited() -> None:
    state = cluster()
    for number in range(MAX_UNENDED):
        begun(state, f"load-{number}")
    refused(state, BeginLoadRequest(load_id="another", keyspace="hashed", requested_by="test"), Code.TOO_MANY_LOADS)
    run(state, AbortLoadRequest(load_id="load-3", requested_by="test", reason=""))
    begun(state, "another")


def test_a_repeated_commit_changes_nothing() -> None:
    state = cluster()
    begun(state)
    files = files_of(state, "hashed")
    run(state, CommitLoadRequest(load_id="one", files=files[:2]))
    assert decided(state, CommitLoadRequest(load_id="one", files=files), NOW) == []
    assert load_of(state, "one").parts == 2
    refused(state, AbortLoadRequest(load_id="one", requested_by="test", reason=""), Code.LOAD_ENDED)
    finish(state, load_of(state, "one"), [file.partition_id for file in files[:2]])
    assert decided(state, CommitLoadRequest(load_id="one", files=files), NOW) == []


def test_a_load_without_files_is_done_at_once() -> None:
    state = cluster()
    begun(state)
    run(state, CommitLoadRequest(load_id="one", files=[]))
    assert load_of(state, "one").state == _S.LOAD_STATE_DONE


@pytest.mark.parametrize("change", ["slot", "partition", "twice", "empty"])
def test_files_that_can_not_be_committed(change: str) -> None:
    state = cluster()
    begun(state)
    files = files_of(state, "hashed")
    if change == "slot":
        files[1].slot += 1
    elif change == "partition":
        files[1].partition_id = files_of(state, "ranged")[0].partition_id
    elif change == "twice":
        files.append(files[0])
    else:
        files[1].rows = 0
    code = Code.STALE_LOAD if change in ("slot", "partition") else Code.INVALID_ARGUMENT
    refused(state, CommitLoadRequest(load_id="one", files=files), code)


def split(state: State, row_id: int, key: bytes) -> None:
    row = state.partitions[row_id]
    run(state, ProposeSplitRequest(node_id=row.leader, partition_id=row.id, generation=row.generation, key=key))


def end_split(state: State, row_id: int) -> None:
    child = state.partitions[state.partitions[row_id].split_to]
    run(
        state,
        FinishSplitRequest(
            node_id=child.leader,
            partition_id=child.id,
            leader_epoch=child.leader_epoch,
            partition_epoch=child.partition_epoch,
        ),
    )


def test_files_of_partitions_that_have_changed_are_refused() -> None:
    state = cluster()
    begun(state, "one", "ranged")
    files = files_of(state, "ranged")
    split(state, files[0].partition_id, b"d")
    refused(state, CommitLoadRequest(load_id="one", files=files), Code.RANGES_CHANGING)
    end_split(state, files[0].partition_id)
    error = refused(state, CommitLoadRequest(load_id="one", files=files), Code.STALE_LOAD)
    assert error.details["partitions_changed"] == str(files[0].partition_id)
    run(state, CommitLoadRequest(load_id="one", files=files_of(state, "ranged")))
    assert load_of(state, "one").parts == 3


def test_no_split_begins_while_a_load_is_taken_in() -> None:
    state = cluster()
    begun(state, "one", "ranged")
    begun(state, "other", "hashed")
    run(state, CommitLoadRequest(load_id="other", files=files_of(state, "hashed")))
    files = files_of(state, "ranged")
    split(state, files[0].partition_id, b"b")
    end_split(state, files[0].partition_id)
    files = files_of(state, "ranged")
    run(state, CommitLoadRequest(load_id="one", files=files))
    row = state.partitions[files[0].partition_id]
    key = b"a"
    error = refused(
        state,
        ProposeSplitRequest(node_id=row.leader, partition_id=row.id, generation=row.generation, key=key),
        Code.SPLIT_REFUSED,
    )
    assert "load one is being taken in" in error.message
    run(state, Split("ranged", [key], "test", ""))  # accepted: the operation waits until it may split
    finish(state, load_of(state, "one"), [file.partition_id for file in files])
    split(state, row.id, key)


def test_only_the_leader_of_the_present_epoch_finishes_a_part() -> None:
    state = cluster()
    begun(state)
    files = files_of(state, "hashed")
    run(state, CommitLoadRequest(load_id="one", files=files))
    load, first = load_of(state, "one"), files[0].partition_id
    row = state.partitions[first]
    other = next(node for node in row.replicas if node != row.leader)
    finish(state, load, [first], node=other)
    finish(state, load, [first], epoch=row.leader_epoch + 1)
    assert load_of(state, "one").parts_done == 0
    finish(state, load, [first, first])
    assert load_of(state, "one").parts_done == 1


def test_an_abandoned_load_is_aborted() -> None:
    state = cluster()
    for name in ("forgotten", "touched", "committed"):
        begun(state, name)
    run(state, CommitLoadRequest(load_id="committed", files=files_of(state, "hashed")))
    run(state, TouchLoadRequest(load_id="touched"), NOW + 5000)
    run(state, AbortAbandoned(4000), NOW + 6000)
    states = [load_of(state, name).state for name in ("forgotten", "touched", "committed")]
    assert states == [_S.LOAD_STATE_ABORTED, _S.LOAD_STATE_STAGING, _S.LOAD_STATE_COMMITTED]
    assert "nobody has gone on with it for 6 s" in load_of(state, "forgotten").outcome
    refused(state, CommitLoadRequest(load_id="forgotten", files=[]), Code.LOAD_ENDED)


def test_only_the_last_loads_that_have_ended_are_kept() -> None:
    state = cluster()
    begun(state, "staged")
    for number in range(KEPT_LOADS + 5):
        begun(state, f"load-{number}")
        run(state, AbortLoadRequest(load_id=f"load-{number}", requested_by="test", reason=""))
    assert len(state.loads.rows) == KEPT_LOADS + 1
    assert state.loads.with_id("load-4") is None
    assert state.loads.lowest_open() == 1
    run(state, AbortLoadRequest(load_id="staged", requested_by="test", reason=""))
    assert state.loads.lowest_open() == state.loads.next_number


def test_a_snapshot_has_all_loads_in_the_order_of_their_commits() -> None:
    state = cluster()
    for name in ("one", "two"):
        begun(state, name)
    for name in ("two", "one"):
        run(state, CommitLoadRequest(load_id=name, files=files_of(state, "hashed")))
    first = files_of(state, "hashed")[0].partition_id
    finish(state, load_of(state, "two"), [first])
    again = State.from_snapshot(state.to_snapshot())
    assert again == state
    assert again.to_snapshot() == state.to_snapshot()
    last = files_of(state, "hashed")[-1].partition_id
    assert [part.load_number for part in again.loads.due_parts(last)] == [2, 1]
    assert state.copy() == state
