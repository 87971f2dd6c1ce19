"""Measures the time of `minkactl status` from its start to its end, compared with a Python that only imports grpcio:
the minimum for a command that uses gRPC.
"""

import os
import subprocess
import sys
import time
from typing import Final

from benchmarks.cluster import create_keyspace
from benchmarks.measure import MINKA, Goal, Report, Sample, main
from minka.testing.local_cluster import LocalCluster

PARTITIONS: Final = 1024
_PEER: Final = "python, import grpc"
_RUNS: Final = 10
_RUN_TIMEOUT_S: Final = 30.0


def run(report: Report) -> None:
    """Measure the only case."""
    case = report.case(f"status, 3 nodes, {PARTITIONS:,} partitions", "s", peer=_PEER, goal=Goal(at_most=0.4))
    with LocalCluster(3) as cluster:
        create_keyspace(cluster.endpoints, PARTITIONS)
        endpoints = ",".join(cluster.endpoints)
        commands = {
            MINKA: [sys.executable, "-m", "minkactl", "status", "--endpoints", endpoints],
            _PEER: [sys.executable, "-c", "import grpc"],
        }
        for _ in range(report.options.rounds):
            for system, command in commands.items():
                report.add(case, system, _runs(command))


def _runs(command: list[str]) -> Sample:
    """Run a command several times; returns the median time."""
    _seconds(command)  # a first run, which compiles modules
    seconds = sorted(_seconds(command) for _ in range(_RUNS))
    median = seconds[len(seconds) // 2]
    return Sample(median, p50_s=median, p99_s=seconds[-1], max_s=seconds[-1])


def _seconds(command: list[str]) -> float:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.monotonic()
    subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True, timeout=_RUN_TIMEOUT_S)
    return time.monotonic() - started


if __name__ == "__main__":
    main("status", "Measure how long minkactl status takes.", run)
