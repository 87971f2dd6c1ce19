"""Crashes during a split: from each state of the disk, the nodes can serve both halves again."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from minka.errors import Code, MinkaError
from minkad.replication.manager import StorageSettings
from tests.integration.replication.crashes import restart_from
from tests.integration.replication.halves import (
    KEY,
    LOWER,
    NODES,
    ROWS,
    UPPER,
    assert_halves,
    begin,
    elect_both,
    ended,
)
from tests.integration.replication.harness import Cluster, cluster
from tests.integration.replication.node import TestNode, until
from tests.unit.storage.crash import crashed_copy

CRASH_POINTS = [
    ("mark", "before"),
    ("mark", "after"),
    ("attach", "before"),
    ("attach", "after"),
    ("take", "before"),
    ("take", "after"),
    ("put_in_place", "before"),
    ("put_in_place", "after"),
    ("record", "before"),
    ("record", "after"),
    ("finish", "before"),
    ("finish", "after"),
]


def copied_at(monkeypatch: pytest.MonkeyPatch, place: str, when: str, node: TestNode) -> list[Path]:
    """Return a list that gets a copy of the node's folder, as a crash would leave it, when the node reaches
    this place.
    """
    left: list[Path] = []
    executor, splitting = node.manager.executor, node.manager.splitting
    where: object = {"mark": executor, "finish": executor}.get(place, splitting)
    name = {"mark": "reached", "finish": "call_finish_split"}.get(place, place)
    original = getattr(where, name)

    def copy(at: str) -> None:
        if at == when and not left:
            left.append(crashed_copy(node.path, node.path.with_name(f"{node.id}-crashed")))

    async def awaiting(*args: Any) -> Any:
        copy("before")
        result = await original(*args)
        copy("after")
        return result

    def reached(at: str) -> None:
        if at == "split.mark":
            copy("before")
        original(at)
        if at == "split.mark":
            copy("after")

    monkeypatch.setattr(where, name, reached if place == "mark" else awaiting)
    return left


@pytest.mark.parametrize(
    ("place", "when", "flush"), [(*point, (1000, 16 << 20)[n % 2]) for n, point in enumerate(CRASH_POINTS)]
)
async def test_the_only_replica_crashes_during_a_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, when: str, flush: int
) -> None:
    """The only replica crashes at any step of the split. When the node is back, the controller's rows say that the
    split still runs; the node leads both halves again.
    """
    async with cluster(tmp_path, storage=StorageSettings(flush=flush)) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        for i in range(0, 1000, 100):
            await athens.put(1, dict(list(ROWS.items())[i : i + 100]))
        left = copied_at(monkeypatch, place, when, athens)
        await begin(c)
        await ended(c)
        assert left, "the node never came to that place"
        monkeypatch.undo()
        await athens.stop()
        if (place, when) != ("finish", "after"):
            for id_ in (1, 2):
                c.change(id_, lambda row: setattr(row, "splitting", True))
        await restart_from(athens, left[0])
        elect_both(c, "athens")
        await c.tell_all(1, 2)
        await ended(c)
        await assert_halves(athens)
        assert await athens.count() == {1: len(LOWER), 2: len(UPPER)}
        await athens.kill()
        await athens.start()
        elect_both(c, "athens")
        await c.tell_all(1, 2)
        await assert_halves(athens)


@pytest.mark.parametrize(("place", "when"), CRASH_POINTS[:-1])
async def test_the_leader_dies_during_a_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, when: str
) -> None:
    """The leader dies at any step of the split. The new leader completes the split, whether its log has the marker or
    not, and the old leader joins again with the data on its disk.
    """
    async with cluster(tmp_path) as c:
        c.before_finish_split = [MinkaError(Code.NO_CONTROLLER, "no active controller yet")] * 10_000
        athens, byzantium, cyrene = await c.add(*NODES)
        await c.create("athens", 1, followers=NODES[1:])
        await athens.put(1, ROWS)
        left = copied_at(monkeypatch, place, when, athens)
        parent, child = c.split(1, KEY)
        if place == "finish":
            await c.tell_all(1, 2)
        await athens.tell(parent, child)
        await until(lambda: bool(left))
        monkeypatch.undo()
        athens.clearance = False
        await athens.stop()
        shutil.rmtree(athens.path)
        left[0].rename(athens.path)
        c.dead.add("athens")
        elect_both(c, "byzantium", without=("athens",))
        await c.tell_all(1, 2)
        await until(lambda: byzantium.replica(2).state.is_made and cyrene.replica(2).state.is_made)
        await byzantium.put(2, {b"9": b"last"}, generation=2)
        await byzantium.put(1, {b"0": b"first"}, generation=2)
        lower, upper = LOWER | {b"0": b"first"}, UPPER | {b"9": b"last"}
        await assert_halves(byzantium, lower, upper)
        athens.clearance = True
        c.dead.clear()
        await athens.start()
        c.before_finish_split.clear()
        await c.tell_all(1, 2)
        await until(lambda: all("athens" in c.rows[id_].isr for id_ in (1, 2)))
        await athens_leads(c, athens, byzantium)
        await assert_halves(athens, lower, upper)


async def athens_leads(c: Cluster, athens: TestNode, byzantium: TestNode) -> None:
    await byzantium.kill()
    c.dead.add("byzantium")
    elect_both(c, "athens", without=("byzantium",))
    await c.tell_all(1, 2)
