"""One voter of a Raft group like the coordinator's, with a state machine that only counts. `benchmarks.raft` runs 3.

Each line on stdin is a request in JSON, and each line on stdout is the answer. The process ends at the end of stdin.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import grpc
import uvloop

from benchmarks.processes import answer
from minka.v1 import coordinator_pb2_grpc
from minka.v1.raft_pb2 import ConfState
from minka.wire.data_port import Purpose
from minkad.coordinator.raft_driver import RaftDriver
from minkad.core.raft import Config, RawNode
from minkad.data_port.incoming import Incoming
from minkad.data_port.listener import Listener
from minkad.data_port.raft import RaftPorts, RaftService, RaftTransport
from minkad.node.command_line import SWITCH_INTERVAL
from minkad.process.telemetry import LATENCY_BOUNDS, Histogram
from minkad.rpc.channels import Channels
from minkad.rpc.raft import RaftCalls, RaftReceiver
from minkad.storage.log_database import LogDatabase
from minkad.storage.raft_storage import RaftStorage

COMMAND_BYTES: Final = 100
PROPOSE_METHOD: Final = "/minka.bench.Raft/Propose"
TICK_S: Final = 0.05  # these constants have a node's default values
ELECTION_TICKS: Final = 10
SNAPSHOT_ENTRIES: Final = 10_000
SNAPSHOT_BYTES_PER_SECOND: Final = 64 * 1024 * 1024
_CLUSTER: Final = "benchmark"


class Counter:
    """A state machine that counts the applied commands."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, data: bytes) -> None:
        """Count one command."""
        self.count += 1

    def capture(self) -> Callable[[], bytes]:
        """Capture the count for a snapshot."""
        count = self.count
        return lambda: count.to_bytes(8, "big")

    def decode(self, snapshot: bytes) -> int:
        """Decode the count in another node's snapshot."""
        return int.from_bytes(snapshot, "big")

    def restore(self, decoded: int) -> None:
        """Replace the count by that of another node."""
        self.count = decoded


class Worker:
    """The voter `raft_id`. The voters at `addresses` have the ids 1, 2, 3 …"""

    driver: RaftDriver

    def __init__(self, raft_id: int, addresses: list[str], data_address: str, directory: Path) -> None:
        self._id = raft_id
        self._data_address = data_address
        self._addresses = addresses
        self._machine = Counter()
        self._log_db = LogDatabase.open(directory)
        self._syncs = Histogram(LATENCY_BOUNDS)
        self._log_db.on_sync = self._syncs.observe
        self._channels = Channels(_CLUSTER, f"voter-{raft_id}")
        self._latencies: list[float] = []

    async def run(self) -> None:
        """Serve until stdin ends."""
        await self._build()
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        receiver = RaftReceiver(self.driver.receive, self._transport.heard_from, data_address=self._data_address)
        incoming = Incoming(_CLUSTER, "", {Purpose.RAFT: RaftService(receiver.begin).serve})
        data_port = Listener(self._data_address, incoming.protocol, None, None)
        await data_port.start()
        coordinator_pb2_grpc.add_RaftServicer_to_server(receiver, server)
        server.add_generic_rpc_handlers((_propose_handler(self.driver),))
        server.add_insecure_port(self._addresses[self._id - 1])
        await server.start()
        driving = asyncio.create_task(self.driver.run())
        answering = asyncio.create_task(self._answer())
        try:
            done, _ = await asyncio.wait([driving, answering], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            driving.cancel()
            answering.cancel()
            self._transport.close()
            data_port.stop()
            incoming.close()
            await server.stop(0)
            await self._channels.close()
            self._log_db.close()

    async def _build(self) -> None:
        raft_log = RaftStorage(self._log_db)
        conf_state = ConfState(voters=range(1, len(self._addresses) + 1))
        raft_log.bootstrap(conf_state)
        await self._log_db.sync()
        calls = RaftCalls(self._channels, SNAPSHOT_BYTES_PER_SECOND)
        self._transport = RaftTransport(
            RaftPorts(calls.locate, _CLUSTER, f"voter-{self._id}", lambda: None).connect,
            calls.send_snapshot,
            self._addresses[self._id - 1],
            lambda raft_id: self._addresses[raft_id - 1],
            lambda _: (),
        )
        applied = raft_log.snapshot().metadata.index
        config = Config(
            id=self._id,
            storage=raft_log,
            random=random.Random().randrange,
            election_tick=ELECTION_TICKS,
            applied=applied,
            disable_proposal_forwarding=True,
        )
        self.driver = RaftDriver(
            RawNode(config),
            raft_log,
            self._log_db,
            self._transport,
            self._machine,
            tick_seconds=TICK_S,
            snapshot_entries=SNAPSHOT_ENTRIES,
            conf_state=conf_state,
            on_progress=lambda: None,
        )
        self._transport.driver = self.driver

    async def _answer(self) -> None:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            request = json.loads(line)
            answer(self._status() if request["do"] == "status" else await self._propose(**request["load"]))

    def _status(self) -> dict[str, Any]:
        leads, applied = self.driver.leads_with_applied_term, self._machine.count
        return {"leads": leads, "applied": applied, "syncs": self._syncs.count}

    async def _propose(self, concurrency: int, seconds: float) -> dict[str, Any]:
        """Keep `concurrency` proposals under way; returns their latencies, in seconds."""
        latencies: list[float] = []
        started = time.perf_counter()
        stop_at = started + seconds
        command = random.Random(0).randbytes(COMMAND_BYTES)

        async def one() -> None:
            now = time.perf_counter()
            while now < stop_at:
                await self.driver.propose(command)
                before, now = now, time.perf_counter()
                latencies.append(now - before)

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(one())
        return {"seconds": time.perf_counter() - started, "latencies": latencies}


def _propose_handler(driver: RaftDriver) -> grpc.GenericRpcHandler:
    async def propose(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for batch in requests:
            starts = range(0, len(batch), COMMAND_BYTES)
            await driver.propose(*(batch[start : start + COMMAND_BYTES] for start in starts))
            yield b""

    service, method = PROPOSE_METHOD[1:].split("/")
    return grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(propose)})


def main() -> None:
    """Run a worker. The arguments are RAFT_ID DIRECTORY DATA_ADDRESS ADDRESS…"""
    raft_id, directory, data_address, *addresses = sys.argv[1:]
    sys.setswitchinterval(SWITCH_INTERVAL)
    uvloop.run(Worker(int(raft_id), addresses, data_address, Path(directory)).run())


if __name__ == "__main__":
    main()
