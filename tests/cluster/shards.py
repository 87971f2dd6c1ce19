"""Helpers that start processes which host duties, and read what these processes have recorded."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from minka.duties import Client
from minka.testing.launcher import enter_network
from minka.testing.local_cluster import LocalCluster
from tests.cluster.cluster import eventually

ROOT = Path(__file__).parents[2]
# The fastest failure detection that gives no false alarms on a busy machine with two cores.
QUICK_SHARDS = {"heartbeat_interval_ms": 200, "clearance_ms": 1500, "failure_timeout_ms": 1900}


@dataclass
class ShardProcess:
    """A process that hosts duties, and the file to which it writes what it does."""

    name: str
    path: Path
    process: "subprocess.Popen[bytes]"

    def lines(self) -> list[dict[str, Any]]:
        """Read all records of the process, except a last line that isn't complete yet."""
        return [json.loads(line) for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def held(self) -> dict[str, int]:
        """Return the names and epochs of the duties for which the process may act, from its last record."""
        samples = [line["held"] for line in self.lines() if "held" in line]
        return dict(samples[-1]) if samples and self.process.poll() is None else {}

    def calls(self, method: str) -> list[list[Any]]:
        """Return the duties in all calls of this method of the delegate, each as name, epoch and payload."""
        return [duty for line in self.lines() if line.get("call") == method for duty in line["duties"]]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@dataclass
class Shards:
    """The processes that host duties of one cluster."""

    cluster: LocalCluster
    directory: Path
    processes: list[ShardProcess] = field(default_factory=list)

    def start(
        self,
        name: str,
        pallet: str,
        *,
        endpoints: Sequence[str] = (),
        namespace: Path | None = None,
        **settings: object,
    ) -> ShardProcess:
        """Start a process with this name that takes duties of the pallet; it runs in `namespace`, if that is given."""
        path = self.directory / f"{name}-{len(self.processes)}.jsonl"
        arguments = {
            "pallets": {pallet: 100},
            "endpoints": list(endpoints or self.cluster.endpoints),
            "name": name,
            **settings,
        }
        command = [sys.executable, "-m", "tests.cluster.shard_process", str(path), json.dumps(arguments)]

        def launch() -> "subprocess.Popen[bytes]":
            if namespace is not None:
                enter_network(namespace)  # of all threads of this process, only this one enters it
            with path.with_suffix(".log").open("wb") as log:
                return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ})

        with ThreadPoolExecutor(1) as thread:
            process = thread.submit(launch).result()
        shard = ShardProcess(name, path, process)
        path.touch()
        self.processes.append(shard)
        return shard

    def places(self) -> dict[str, str]:
        """Return the names of the shards that may act for a duty, by the duty's name."""
        return {duty: shard.name for shard in self.processes for duty in shard.held()}

    def wait_placed(self, names: set[str], on: Sequence[ShardProcess] = ()) -> None:
        """Wait until some process may act for each of these duties. If `on` is given, only its processes may have these
        duties, and each of them must have at least one.
        """
        shards = {shard.name for shard in on}

        def probe() -> bool:
            places = {name: place for name, place in self.places().items() if name in names}
            return set(places) == names and (not shards or set(places.values()) == shards)

        eventually(f"{len(names)} duties in their places", probe)

    def assert_nothing_was_held_twice(self) -> int:
        """Check, from the records of all processes, that at most one process held a duty at any time, and that each
        later process held the duty at a greater epoch. Returns how often a process got a duty.
        """
        spans: dict[str, list[tuple[float, float, str, int]]] = {}
        for shard in self.processes:
            own: dict[tuple[str, int], list[float]] = {}
            for line in shard.lines():
                for name, epoch in line.get("held", ()):
                    span = own.setdefault((name, epoch), [line["after"], line["after"]])
                    span[1] = line["before"]
            for (name, epoch), (first, last) in own.items():
                spans.setdefault(name, []).append((first, last, shard.path.stem, epoch))
        for name, some in spans.items():
            some.sort()
            for (_, last, shard_a, epoch_a), (first, _, shard_b, epoch_b) in pairwise(some):
                assert first >= last, f"{name}: {shard_a} had it until {last}, {shard_b} from {first} on"
                assert epoch_a < epoch_b, f"{name}: epoch {epoch_b} of {shard_b} after {epoch_a} of {shard_a}"
        return sum(map(len, spans.values()))

    def close(self) -> None:
        """Kill all processes."""
        for shard in self.processes:
            if shard.process.poll() is None:
                shard.process.kill()
                shard.process.wait()


def make_duties(client: Client, pallet: str, count: int) -> set[str]:
    """Create a pallet with `count` duties; returns their names."""
    from minka.duties import changes

    client.create_pallet(pallet)
    client.change([changes.create(pallet, f"d{n}", f"payload {n}") for n in range(count)])
    return {f"{pallet}/d{n}" for n in range(count)}


@contextmanager
def running(cluster: LocalCluster, directory: Path) -> Iterator[Shards]:
    """Yield the shards of a cluster, and kill their processes after the block."""
    shards = Shards(cluster, directory)
    try:
        yield shards
    finally:
        shards.close()
