"""A node whose HTTP endpoints a test serves."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp

from minka.testing.loopback_ports import free_addresses
from minkad.config.addresses import join_address, split_address
from minkad.http.metrics import Lag, Snapshot, create_registry
from minkad.http.server import Check, create_app, start
from minkad.process.telemetry import Telemetry

READY = Check("clearance", ok=True, reason="0.8 s left", needed_for_ready=True, needed_for_live=False)
LIVE = Check("log", ok=True, reason="", needed_for_ready=True, needed_for_live=True)
SNAPSHOT = Snapshot(
    node="athens",
    cluster="minka",
    zone='a"b',
    version="0.1.0",
    raft_term=3,
    raft_commit_index=12,
    raft_applied_index=11,
    is_controller=True,
    clearance_remaining_seconds=0.75,
    clock_offset_seconds=-2.5,
    nodes={"live": 2, "failed": 1},
    partitions={"online": 8, "offline": 1},
    replicas={"leader": 3},
    migrations_running=2,
    under_replicated=4,
    missing_in_sync=5,
    under_min_insync=1,
    elections=20,
    unclean_elections=2,
    lags={"byzantium": Lag(7, 0.25)},
    disk_total_bytes=1 << 40,
    disk_free_bytes=1 << 30,
    is_disk_low=True,
    unsynced_seconds=0.025,
)


class FakeNode:
    """A node whose health and numbers a test sets."""

    def __init__(self) -> None:
        self.telemetry = Telemetry()
        self.current: Sequence[Check] = (READY, LIVE)
        self.refreshed = 0

    def checks(self) -> Sequence[Check]:
        return self.current

    async def refresh(self) -> None:
        self.refreshed += 1

    def snapshot(self) -> Snapshot:
        return SNAPSHOT


def free_address(host: str = "127.0.0.1") -> str:
    """Return an address at which no process listens. No other test process gets the port."""
    return join_address(host, split_address(free_addresses(1)[0])[1])


@asynccontextmanager
async def served(node: FakeNode, address: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve the node's endpoints at `address`; yields a client for them."""
    runner = await start(create_app(node, create_registry(node)), address)
    try:
        async with aiohttp.ClientSession(f"http://{address}", timeout=aiohttp.ClientTimeout(10)) as session:
            yield session
    finally:
        await runner.cleanup()
