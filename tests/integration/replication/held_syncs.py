"""A log whose disk hangs while a test wants it to."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from minkad.storage.log_database import Sync
from tests.integration.replication.node import TestNode


class HeldSyncs:
    """Syncs of a node's log that don't end before `release`."""

    def __init__(self, sync: Callable[[], asyncio.Future[None]], when: Callable[[], bool]) -> None:
        self.held: list[tuple[asyncio.Future[None], Sync]] = []  # the real one, and what is waited for instead
        self._sync = sync
        self._when = when

    def sync(self) -> asyncio.Future[None]:
        """Begin a sync, whose end is held if that is wanted now."""
        synced = self._sync()
        if not self._when():
            return synced
        waited = Sync(loop=asyncio.get_running_loop())
        self.held.append((synced, waited))
        return waited

    async def release(self) -> None:
        """Let the held ones end, and hold none from now on."""
        self._when = lambda: False
        held, self.held = self.held, []
        for synced, waited in held:
            await synced
            waited.set_result(None)


@contextmanager
def held_syncs(node: TestNode, when: Callable[[], bool]) -> Iterator[HeldSyncs]:
    """Hold the syncs of the node's log that begin while `when()`."""
    held = HeldSyncs(node.log_db.sync, when)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.log_db, "sync", held.sync)
        yield held
        assert not held.held, "they are released"


def begins_later(node: TestNode, partition_id: int) -> bool:
    """Whether the log of the node's replica begins after a checkpoint."""
    return partition_id in node.manager.replicas and node.replica(partition_id).log.base > 0
