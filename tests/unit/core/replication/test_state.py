"""A replica's durable offset, and the opening of its data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.errors import Code, MinkaError
from minkad.core.replication.entries import SplitMarker, encode_mark
from minkad.core.replication.replica_state import Copy, ReplicaState, Role, role_in
from tests.unit.core.replication.bench import MemoryData, MemoryLog, a_write, data_at, log_of, row


def state(log: MemoryLog | None = None, data: MemoryData | None = None, *, is_async: bool = False) -> ReplicaState:
    made = ReplicaState(row(), log or MemoryLog(), data or MemoryData())
    made.recovered_to(made.log.end)
    made.is_async = is_async
    return made


def stage(made: ReplicaState, count: int) -> None:
    for _ in range(count):
        made.log.append(1, a_write())


# The durable offset


def test_in_a_sync_keyspace_entries_that_are_not_on_the_disk_are_not_durable() -> None:
    made = state()
    stage(made, 2)
    made.stored(2, 0, on_disk=False)
    assert made.durable == 0
    made.stored(1, 0, on_disk=True)
    assert made.durable == 1


def test_in_an_async_keyspace_entries_that_the_operating_system_has_are_durable() -> None:
    made = state(is_async=True)
    stage(made, 2)
    made.stored(2, 0, on_disk=False)
    assert made.durable == 2


def test_the_durable_offset_does_not_fall_when_an_older_sync_ends_later() -> None:
    made = state(is_async=True)
    stage(made, 3)
    made.stored(3, 0, on_disk=False)
    made.stored(1, 0, on_disk=True)
    assert made.durable == 3


def test_entries_from_a_barrier_on_are_durable_only_once_the_barrier_is_on_the_disk() -> None:
    made = state(is_async=True)
    stage(made, 4)
    made.stored(2, 0, on_disk=False)
    made.barrier(3)
    made.stored(4, 0, on_disk=False)
    assert made.durable == 2
    made.stored(3, 0, on_disk=True)
    assert made.durable == 4


def test_a_sync_that_began_before_a_truncation_does_not_count() -> None:
    made = state()
    stage(made, 3)
    was = made.log.truncations
    made.truncate(1)
    stage(made, 2)
    made.stored(3, was, on_disk=True)
    assert made.durable == 0
    made.stored(3, made.log.truncations, on_disk=True)
    assert made.durable == 3


def test_truncated_entries_and_barriers_no_longer_count() -> None:
    made = state(is_async=True)
    stage(made, 4)
    made.stored(4, 0, on_disk=True)
    made.barrier(4)
    made.truncate(2)
    assert made.durable == 2
    stage(made, 2)
    made.stored(3, made.log.truncations, on_disk=False)
    assert made.durable == 3  # the barrier was truncated, so no sync is needed


def test_committed_entries_are_never_truncated() -> None:
    made = state(log_of(1, 1, 1))
    made.high_watermark = 2
    with pytest.raises(AssertionError, match="committed is 2"):
        made.truncate(1)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("truncate"), st.integers(0, 3)),
        st.tuples(st.just("barrier"), st.just(0)),
        st.tuples(st.just("written"), st.integers(0, 5)),
        st.tuples(st.just("synced"), st.integers(0, 5)),
    ),
    max_size=30,
)


@given(steps, st.booleans())
def test_the_durable_offset_never_exceeds_what_is_stored(steps: list[tuple[str, int]], is_async: bool) -> None:
    """Syncs end late and in any order. For each entry, the test's log has the time at which the entry was staged."""
    made = state(is_async=is_async)
    log: list[int] = []  # for each entry, the time at which it was staged
    begun: list[tuple[list[int], int]] = []  # for each sync, the entries staged when it began
    on_disk: set[int] = set()
    with_system: set[int] = set()
    barriers: set[int] = set()
    for number, (kind, value) in enumerate(steps):
        if kind == "append":
            stage(made, value)
            log += [number * 10 + i for i in range(value)]
        elif kind == "truncate":
            end = max(len(log) - value, 0)
            made.truncate(end)
            del log[end:]
        elif kind == "barrier" and log:
            stage(made, 1)
            log.append(number * 10)
            barriers.add(log[-1])
            made.barrier(len(log))
        elif kind in ("written", "synced") and value < len(begun):
            entries, truncations = begun[value]
            with_system |= set(entries)
            if kind == "synced":
                on_disk |= set(entries)
            made.stored(len(entries), truncations, on_disk=kind == "synced")
        begun.append((list(log), made.log.truncations))
        durable = log[: made.durable]
        assert set(durable) <= (with_system if is_async else on_disk)
        assert not barriers & set(durable) - on_disk


# The opening of the data


def take_over(made: ReplicaState) -> None:
    """Open the data, if there is any, and take over its applied offset."""
    if made.data.is_closed:
        made.check_data()
        assert isinstance(made.data, MemoryData)
        made.data.open()
    made.take_over_data()


def test_a_replica_takes_over_data_whose_offset_is_within_the_log() -> None:
    made = state(log_of(1, 1, 1), data_at(2))
    take_over(made)
    assert (made.applied, made.flushed, made.high_watermark) == (2, 2, 2)


def test_without_data_a_log_with_all_entries_needs_none_opened() -> None:
    made = state(log_of(1, 1))
    take_over(made)
    assert (made.applied, made.data.is_open) == (0, False)


def damaged_by_opening(made: ReplicaState) -> str:
    with pytest.raises(MinkaError) as caught:
        take_over(made)
    assert caught.value.code is Code.CORRUPT_DATA
    assert made.damage is caught.value
    with pytest.raises(MinkaError) as again:
        take_over(made)
    assert again.value is caught.value
    return caught.value.message


def test_missing_data_is_damage_if_the_log_begins_later() -> None:
    assert "is gone" in damaged_by_opening(state(log_of(1, base=4)))


@pytest.mark.parametrize("is_async", [False, True])
def test_data_that_lacks_trimmed_entries_is_damage(is_async: bool) -> None:
    assert "is at offset 3" in damaged_by_opening(state(log_of(1, base=4), data_at(3), is_async=is_async))


def test_data_ahead_of_a_synced_log_is_damage() -> None:
    assert "is at offset 3" in damaged_by_opening(state(log_of(1, 1), data_at(3)))


def test_an_async_log_goes_on_at_the_offset_of_data_ahead_of_it() -> None:
    made = state(log_of(1, 1), data_at(3, leader_epoch=2), is_async=True)
    take_over(made)
    assert (made.log.base, made.log.end, made.log.epoch_at(3)) == (3, 3, 2)
    assert (made.applied, made.high_watermark, made.durable) == (3, 3, 3)


def test_a_copy_that_was_being_replaced_is_damage() -> None:
    made = state(log_of(1), data_at(1))
    made.copy = Copy.INCOMPLETE
    assert "was being replaced" in damaged_by_opening(made)


def test_a_splits_marker_that_was_applied_last_is_applied_again() -> None:
    log = log_of(1)
    log.append(1, encode_mark(SplitMarker(9, 2)))
    made = state(log, data_at(2))
    take_over(made)
    assert (made.applied, made.high_watermark) == (1, 2)


# The replica's copy


def test_a_checkpoint_that_breaks_off_before_it_changes_anything_leaves_the_copy_whole() -> None:
    made = state()
    made.begin_receiving()
    assert (made.is_receiving, made.is_complete, made.is_usable) == (True, True, False)
    made.end_receiving()
    assert made.copy is Copy.WHOLE


def test_a_checkpoint_that_breaks_off_in_the_middle_leaves_the_copy_incomplete() -> None:
    made = state()
    made.copy = Copy.REPLACING
    made.end_receiving()
    assert made.copy is Copy.INCOMPLETE
    made.begin_receiving()
    assert made.is_complete is False


def test_data_made_again_is_served_only_once_it_has_all_committed_entries() -> None:
    made = state(log_of(1, 1))
    made.role, made.high_watermark, made.applied = Role.LEADER, 2, 2
    made.put_empty_data(MemoryData())
    assert (made.applied, made.ready_at, made.is_ready) == (0, 2, False)


def test_after_a_checkpoint_the_log_begins_at_the_checkpoints_offset() -> None:
    made = state(log_of(1, 1, 1))
    made.barrier(3)
    made.put_data(data_at(8, 4))
    made.begin_with_checkpoint()
    assert (made.log.base, made.applied, made.high_watermark, made.durable) == (8, 8, 8, 8)


# The replica's role


def test_the_role_of_a_node_in_a_row() -> None:
    assert role_in(row(), "athens") is Role.LEADER
    assert role_in(row(), "byzantium") is Role.FOLLOWER
    assert role_in(row(leader=""), "byzantium") is Role.IDLE
    assert role_in(row(), "delos") is Role.REMOVED
    assert role_in(row(removing_replicas=("byzantium",)), "byzantium") is Role.REMOVED
