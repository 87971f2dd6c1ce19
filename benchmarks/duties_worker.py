"""A process with many shards. Their delegate only notes when it was called.

The argument is `Shards` as JSON. The process reads lines. It answers "held" with the number of its duties, and "calls"
with the calls that the delegate has noted since the last "calls".
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.processes import answer
from minka.duties import Capacity, Delegate, Duty, Shard

PALLET = "bench"


@dataclass(frozen=True)
class Shards:
    """The shards of one process."""

    endpoints: list[str]
    names: list[str]
    capacity: int  # of each shard

    def command(self) -> list[str]:
        """The command that starts the process."""
        return [sys.executable, "-m", "benchmarks.duties_worker", json.dumps(asdict(self))]


class Noting(Delegate):
    """The delegate of all shards of the process. It notes its calls."""

    def __init__(self) -> None:
        self.held = 0
        self.calls: list[tuple[str, int, int, float]] = []  # method, duty, epoch, time of the call

    async def attach(self, duties: Sequence[Duty]) -> None:
        """Note the call."""
        self.held += len(duties)
        self._note("attach", duties)

    async def detach(self, duties: Sequence[Duty]) -> None:
        """Note the call."""
        self.held -= len(duties)
        self._note("detach", duties)

    def _note(self, method: str, duties: Sequence[Duty]) -> None:
        now = time.monotonic()
        self.calls += [(method, duty.number, duty.epoch, now) for duty in duties]

    def asked(self, line: str) -> Any:
        """Return the answer to a line."""
        if line == "held":
            return self.held
        calls, self.calls = self.calls, []
        return calls


async def host(shards: Shards) -> None:
    """Host duties until the process gets SIGTERM, which ends it at once."""
    noting, loop = Noting(), asyncio.get_running_loop()
    pallets = {PALLET: Capacity(shards.capacity)}
    # With on_stuck="report", a stuck shard doesn't end the process, which has other shards, too.
    hosted = [Shard(noting, pallets, shards.endpoints, name=name, on_stuck="report") for name in shards.names]

    async def listen() -> None:
        while line := await asyncio.to_thread(sys.stdin.readline):
            answer(noting.asked(json.loads(line)))

    loop.add_signal_handler(signal.SIGTERM, os._exit, 0)
    listening = asyncio.create_task(listen())
    answer("ready")
    await asyncio.gather(*(shard.run() for shard in hosted), listening)


if __name__ == "__main__":
    asyncio.run(host(Shards(**json.loads(sys.argv[1]))))
