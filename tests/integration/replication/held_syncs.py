"""Lets the syncs of a node's log hang for as long as a test needs."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from minkad.storage.log_database import Sync
from tests.integration.replication.node import TestNode


class HeldSyncs:
    """Lets the syncs of a log begin, but delays their ends until `release`."""

    def __init__(self, sync: Callable[[], asyncio.Future[None]], when: Callable[[], bool]) -> None:
        self.held: list[tuple[asyncio.Future[None], Sync]] = []  # the real sync, and the future to wait for instead
        self._sync = sync
        self._when = when

    def sync(self) -> asyncio.Future[None]:
        """Begin a sync; hold its end if `when()` is true."""
        synced = self._sync()
        if not self._when():
            return synced
        waited = Sync(loop=asyncio.get_running_loop())
        self.held.append((synced, waited))
        return waited

    async def release(self) -> None:
        """Let the held syncs end, and hold no later ones."""
        self._when = lambda: False
        held, self.held = self.held, []
        for synced, waited in held:
            await synced
            waited.set_result(None)


@contextmanager
def held_syncs(node: TestNode, when: Callable[[], bool]) -> Iterator[HeldSyncs]:
    """Hold the syncs of the node's log that begin while `when()` is true."""
    held = HeldSyncs(node.log_db.sync, when)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.log_db, "sync", held.sync)
        yield held
        assert not held.held, "all syncs are released"


def begins_later(node: TestNode, partition_id: int) -> bool:
    """True if the log of the node's replica begins at a checkpoint, not at offset 0."""
    return partition_id in node.manager.replicas and node.replica(partition_id).log.base > 0
