"""A hand-over ends each move. Its outcome may be unknown or late, or the controller may refuse it, but at any time at
most one node serves the partition.
"""

import asyncio
import contextlib
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import MigrationPhase
from minkad.core.replication.replication_settings import ReplicationSettings
from tests.integration.replication.harness import cluster
from tests.integration.replication.moves import ROWS, SMALL, arrived, check, two
from tests.integration.replication.node import Refused, until

_PHASE = MigrationPhase


async def test_an_unknown_outcome_keeps_writes_and_reads_waiting(tmp_path: Path) -> None:
    """The controller records the hand-over, but its answer is lost: the source serves nothing until it knows the
    outcome.
    """
    async with cluster(tmp_path) as c:
        athens, ephesus = await two(c, SMALL)
        c.after_hand_over = [MinkaError(Code.OUTCOME_UNKNOWN, "the answer was lost")] * 100_000
        await c.move("ephesus", 1)
        await until(lambda: len(c.hand_overs) >= 1)
        with pytest.raises(Refused) as caught:
            await athens.get(1, b"a", timeout_ms=20)
        assert caught.value.error.code is Code.DEADLINE_EXCEEDED
        asked = len(c.hand_overs)
        c.after_hand_over = []
        await arrived(c)  # the source asks again, and hears the recorded outcome
        assert len(c.hand_overs) > asked
        await check(ephesus, SMALL)


async def test_a_refusal_after_an_unknown_outcome_decides_nothing(tmp_path: Path) -> None:
    """The controller may refuse the second request because it has recorded the first one. So the source still doesn't
    know the outcome.
    """
    async with cluster(tmp_path) as c:
        athens, _ = await two(c, SMALL)
        c.before_hand_over = [
            MinkaError(Code.OUTCOME_UNKNOWN, "the answer was lost"),
            *(MinkaError(Code.STALE_GENERATION, "the test refuses hand-overs") for _ in range(100)),
        ]
        await c.move("ephesus", 1)
        await until(lambda: len(c.hand_overs) >= 3)
        with pytest.raises(Refused, match="handed over"):
            await athens.put(1, {b"a": b"2"}, timeout_ms=50)
        (progress,) = athens.manager.migrations()
        assert progress.phase == _PHASE.MIGRATION_PHASE_HAND_OVER
        assert "outcome" in progress.blocked_by
        await athens.tell(c.cancel(1, "ephesus"))
        await athens.put(1, {b"a": b"2"})


async def test_writes_continue_after_a_refused_hand_over(tmp_path: Path) -> None:
    """After a refused hand-over, the source accepts writes; it tries to hand over again later."""
    async with cluster(tmp_path) as c:
        athens, ephesus = await two(c, SMALL)
        c.before_hand_over = [MinkaError(Code.STALE_GENERATION, "the test refuses hand-overs")] * 3
        await c.move("ephesus", 1)
        await until(lambda: len(c.hand_overs) == 2)
        await athens.put(1, {b"c": b"3"})
        await arrived(c)
        await check(ephesus, {**SMALL, b"c": b"3"})


async def test_the_gate_opens_when_the_target_does_not_catch_up(tmp_path: Path) -> None:
    """If the target doesn't catch up, writes wait at most `write_pause_timeout`, and the source tries again later."""
    async with cluster(tmp_path, ReplicationSettings(write_pause_timeout=0.05, lag_timeout=10.0)) as c:
        athens, ephesus = await two(c, SMALL)
        c.hold_hand_over()
        await c.move("ephesus", 1)
        await until(lambda: len(c.hand_overs) >= 1)
        ephesus.manager.mute = True
        writing = asyncio.create_task(athens.put(1, {b"c": b"3"}))
        await until(lambda: "catch up" in athens.manager.migrations()[0].blocked_by)
        c.before_hand_over.clear()
        tries, lifted = len(c.hand_overs), len(athens.write_pauses)
        await until(lambda: len(athens.write_pauses) >= lifted + 2)
        assert len(c.hand_overs) == tries
        assert not writing.done()
        ephesus.manager.mute = False
        await until(lambda: not athens.replica().state.gate.is_closed)
        later = asyncio.create_task(athens.put(1, {b"d": b"4"}))
        await writing
        with contextlib.suppress(Refused):
            await later
        await arrived(c)
        if later.exception() is not None:
            await ephesus.put(1, {b"d": b"4"}, generation=2)
        await check(ephesus, {**SMALL, b"c": b"3", b"d": b"4"})


async def test_a_cancelled_move(tmp_path: Path) -> None:
    """After the cancellation, the source serves and the target deletes its copy, even if the source was waiting for the
    outcome of the hand-over.
    """
    async with cluster(tmp_path) as c:
        athens, ephesus = await two(c, ROWS)
        c.before_hand_over = [MinkaError(Code.NO_CONTROLLER, "no active controller yet")] * 1000
        await c.move("ephesus", 1)
        await until(lambda: len(c.hand_overs) >= 2)
        assert await ephesus.count() == {1: len(ROWS)}
        row = c.cancel(1, "ephesus")
        await athens.tell(row)
        assert (await ephesus.tell(row)).deleted_ids == [1]
        assert await ephesus.count() == {}
        assert c.folders() == {"athens/partitions/1"}
        await athens.put(1, {b"c": b"3"})
        await check(athens, {**ROWS, b"c": b"3"}, generation=1)
        assert athens.manager.migrations() == []


async def test_the_source_deletes_its_copy_only_when_told(tmp_path: Path) -> None:
    """The source deletes its copy only if a row has the source in removing_replicas."""
    async with cluster(tmp_path) as c:
        athens, _ = await two(c, ROWS)
        c.tell_later = lambda *_: None  # type: ignore[method-assign] # only the answer has the new row
        await c.move("ephesus", 1)
        await until(lambda: c.rows[1].leader == "ephesus")
        await until(lambda: not athens.manager.migrations())
        assert await athens.count() == {1: len(ROWS)}
        with pytest.raises(Refused, match="STALE_GENERATION"):
            await athens.get(1, b"a")
        assert (await athens.tell(c.rows[1])).deleted_ids == [1]
        assert await athens.count() == {}
        assert (await athens.tell(c.rows[1])).deleted_ids == [1]
