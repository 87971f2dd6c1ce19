"""A bug in the work for one partition ends only the node's replica of it; the node and its other partitions
continue.
"""

import asyncio
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import Refused, until


async def _bug(*_: object) -> None:
    raise KeyError("a bug")


@pytest.mark.parametrize("where", ["mark", "flush"])
async def test_a_bug_ends_one_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    ends: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: ends.append(context))
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        for partition_id in (1, 2):
            await c.create("athens", partition_id)
            await athens.put(partition_id, {b"k": b"v"})
        await athens.manager.flusher.flush(athens.replica(1))  # after two flushes, the log lacks the first entry
        await athens.put(1, {b"l": b"w"})
        await athens.manager.flusher.flush(athens.replica(1))
        if where == "mark":
            monkeypatch.setattr(athens.manager.snapshots, "_keep", _bug)
            with pytest.raises((MinkaError, TimeoutError)):
                async with asyncio.timeout(1):
                    await athens.manager.snapshots.open(1, 1, 0)
        else:
            monkeypatch.setattr(athens.manager.flusher, "flush", _bug)
            athens.manager.flusher._start(athens.replica(1))
        await until(lambda: athens.replica(1).state.damage is not None)
        with pytest.raises(Refused) as refused:
            await athens.get(1, b"k")
        assert refused.value.error.code is Code.CORRUPT_DATA
        assert "a bug" in refused.value.error.message
        assert await athens.get(2, b"k") == [b"v"]
        assert athens.log_db.error is None
        assert not ends
