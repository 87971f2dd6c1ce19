"""Measures commits per second of the coordinator's Raft, compared with etcd: three processes each, on loopback and one
disk.

Minka's state machine only counts commands; etcd's is its key-value store. So this compares the durable agreement on a
log.
"""

import asyncio
import sys
import time
from types import TracebackType
from typing import Any, Final, Self

import grpc
import uvloop

from benchmarks.etcd_client import PUT, TXN, Calls, put_request, txn_request
from benchmarks.measure import MINKA, Case, Goal, Report, main, sample_of
from benchmarks.peers import ETCD, EtcdCluster, missing
from benchmarks.processes import Group, Talk, free_ports
from benchmarks.raft_worker import COMMAND_BYTES, PROPOSE_METHOD
from minka.testing.loopback_ports import LOOPBACK

CONCURRENCY: Final = (1, 16, 128, 1024)
STREAMS: Final = (1, 8, 32)
BATCH: Final = 100
GOAL_STREAMS: Final = 8

_KEYS: Final = 10_000  # etcd's puts change the same keys again and again, so its tree stays small
_VALUE: Final = b"v" * (COMMAND_BYTES - len(b"key/000000000000"))
_CONNECTIONS: Final = 16
_WARM_UP_S: Final = 0.5


def run(report: Report) -> None:
    """Measure all cases, and add them to the report."""
    report.absent |= {ETCD: reason} if (reason := missing(ETCD)) else {}
    report.notes.append(
        f"Commands of {COMMAND_BYTES} bytes; etcd: puts of as many bytes of key and value, sent to the leader on up to "
        f"{_CONNECTIONS} connections by the client in benchmarks/etcd_client.py."
    )
    for _ in range(report.options.rounds):
        if ETCD not in report.absent:
            with EtcdCluster() as etcd:
                _measure_etcd(report, etcd)
        with RaftGroup() as group:
            _measure_minka(report, group)


def _measure_etcd(report: Report, etcd: EtcdCluster) -> None:
    leader = etcd.leader()
    _call_etcd(PUT, leader, 16, _WARM_UP_S)
    for concurrency in CONCURRENCY:
        syncs, revision = etcd.syncs(), etcd.revision()
        seconds, latencies = _call_etcd(PUT, leader, concurrency, report.options.seconds)
        assert etcd.revision() - revision == len(latencies), "etcd made every put, and no other"
        syncs_a_commit = (etcd.syncs() - syncs) / len(latencies)
        sample = sample_of(len(latencies), seconds, latencies, syncs_a_commit=syncs_a_commit)
        report.add(_proposals(report, concurrency), ETCD, sample)
    for streams in STREAMS:
        seconds, latencies = _call_etcd(TXN, leader, streams, report.options.seconds)
        report.add(_batches(report, streams), ETCD, sample_of(BATCH * len(latencies), seconds, latencies))


def _call_etcd(method: str, leader: str, concurrency: int, seconds: float) -> tuple[float, list[float]]:
    calls = Calls(method, _put if method == PUT else _txn)
    return uvloop.run(calls.run(leader, concurrency, _CONNECTIONS, seconds)), calls.latencies


def _put(number: int) -> bytes:
    return put_request(b"key/%012d" % (number % _KEYS), _VALUE)


def _txn(number: int) -> bytes:
    return txn_request([(b"key/%012d" % ((number * BATCH + i) % _KEYS), _VALUE) for i in range(BATCH)])


def _measure_minka(report: Report, group: "RaftGroup") -> None:
    group.propose(16, _WARM_UP_S)
    for concurrency in CONCURRENCY:
        before = group.status()["syncs"]
        seconds, latencies = group.propose(concurrency, report.options.seconds)
        syncs_a_commit = (group.status()["syncs"] - before) / len(latencies)
        sample = sample_of(len(latencies), seconds, latencies, syncs_a_commit=syncs_a_commit)
        report.add(_proposals(report, concurrency), MINKA, sample)
    for streams in STREAMS:
        before = group.status()["applied"]
        seconds, latencies = uvloop.run(_stream_batches(group.leader_address, streams, report.options.seconds))
        assert group.status()["applied"] - before == BATCH * len(latencies), "every command was applied, and no other"
        report.add(_batches(report, streams), MINKA, sample_of(BATCH * len(latencies), seconds, latencies))


def _proposals(report: Report, concurrency: int) -> Case:
    return report.case(f"proposals in process, {concurrency} under way", "commits/s", ETCD, Goal(ratio=1))


def _batches(report: Report, streams: int) -> Case:
    goal = Goal(ratio=3) if streams == GOAL_STREAMS else None
    return report.case(f"batches of {BATCH} through gRPC, {streams} streams", "commands/s", ETCD, goal)


async def _stream_batches(address: str, streams: int, seconds: float) -> tuple[float, list[float]]:
    """Let each stream send its next batch when the last one is answered. Returns the total seconds, and the seconds of
    each batch.
    """
    latencies: list[float] = []
    batch = b"c" * (BATCH * COMMAND_BYTES)

    async def one(channel: grpc.aio.Channel, stop_at: float) -> None:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(PROPOSE_METHOD)()
        now = time.perf_counter()
        while now < stop_at:
            await call.write(batch)
            answer = await call.read()
            assert answer == b"", f"the worker ended the stream: {answer!r}"
            before, now = now, time.perf_counter()
            latencies.append(now - before)
        await call.done_writing()

    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(streams):
                group.create_task(one(channel, started + seconds))
        return time.perf_counter() - started, latencies


class RaftGroup:
    """A group of workers, one of which leads."""

    def __init__(self, voters: int = 3) -> None:
        addresses = [f"{LOOPBACK}:{port}" for port in free_ports(2 * voters)]
        self._addresses, self._data_addresses = addresses[:voters], addresses[voters:]
        self._group = Group("raft")
        self._workers: list[Talk] = []
        self._leader = 0

    def __enter__(self) -> Self:
        try:
            for i in range(len(self._addresses)):
                directory = str(self._group.directory / f"r{i}")
                command = [sys.executable, "-m", "benchmarks.raft_worker", str(i + 1), directory]
                command += [self._data_addresses[i], *self._addresses]
                self._workers.append(self._group.start_talking(f"r{i}", command))
            self._group.wait_until("the workers have a leader", self._find_leader)
        except BaseException:
            self._group.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._group.__exit__(kind, error, tb)

    @property
    def leader_address(self) -> str:
        """The address to which batches are sent: the leader's."""
        return self._addresses[self._leader]

    def propose(self, concurrency: int, seconds: float) -> tuple[float, list[float]]:
        """Keep `concurrency` proposals under way at the leader. Returns the total seconds, and the seconds of each
        proposal.
        """
        answer = self._ask(self._leader, {"do": "propose", "load": {"concurrency": concurrency, "seconds": seconds}})
        return answer["seconds"], answer["latencies"]

    def status(self) -> dict[str, Any]:
        """The leader's counters."""
        return self._ask(self._leader, {"do": "status"})

    def _find_leader(self) -> bool:
        leading = [i for i in range(len(self._workers)) if self._ask(i, {"do": "status"})["leads"]]
        self._leader = leading[0] if leading else 0
        return bool(leading)

    def _ask(self, index: int, request: dict[str, Any]) -> dict[str, Any]:
        self._workers[index].say(request)
        answer: dict[str, Any] = self._workers[index].hear()
        return answer


if __name__ == "__main__":
    main("raft", "Measure commits per second of the coordinator's Raft, compared with etcd.", run)
