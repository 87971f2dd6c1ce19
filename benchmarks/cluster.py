"""Fills a cluster of Minka with keys, and runs client processes that send requests to it."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Final, Self

from benchmarks.kv_worker import VALUE, Done, Work, key
from benchmarks.processes import Group
from minka import Client
from minka.admin.control import Control
from minka.errors import MinkaError
from minka.v1.cluster_pb2 import HashFunction, PartitionState

KEYSPACE: Final = "bench"
_LOAD_BATCH: Final = 10_000
_LOAD_ATTEMPTS: Final = 5
_ONLINE_TIMEOUT_S: Final = 30.0


class Clients:
    """Client processes. They are connected when the block begins."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works
        self._group = Group("clients")

    def __enter__(self) -> Self:
        try:
            self._talks = [
                self._group.start_talking(
                    f"client-{number}", [sys.executable, "-m", "benchmarks.kv_worker", json.dumps(asdict(work))]
                )
                for number, work in enumerate(self._works)
            ]
            for talk in self._talks:
                assert talk.hear() == "connected", "a client says so first"
        except BaseException:
            self._group.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._group.__exit__(kind, error, tb)

    def begin(self) -> None:
        """Let the clients begin to send requests."""
        for talk in self._talks:
            talk.say("go")

    def stop(self) -> None:
        """Let the clients stop early."""
        for talk in self._talks:
            talk.say("stop")

    def end(self) -> Done:
        """Wait until all clients are done; returns the sum of their work. Raises RuntimeError if a call failed."""
        outcomes = [Done(**talk.hear()) for talk in self._talks]
        calls = [(number, at, took) for done in outcomes for number, at, took in done.calls]
        return Done(sum(done.keys for done in outcomes), max(done.seconds for done in outcomes), calls=calls)


def create_keyspace(endpoints: Sequence[str], partitions: int, replicas: int = 1) -> None:
    """Create KEYSPACE with `replicas` replicas for each partition, and wait until all partitions are ONLINE."""
    with Control(endpoints) as control:
        control.create_keyspace(KEYSPACE, partitions, HashFunction.HASH_FUNCTION_MURMUR3, replicas)
        deadline = time.monotonic() + _ONLINE_TIMEOUT_S
        while not _is_online(control, partitions):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all of {partitions} partitions are ONLINE after {_ONLINE_TIMEOUT_S:g} s")
            time.sleep(0.05)


def _is_online(control: Control, partitions: int) -> bool:
    states = [partition.state for partition in control.table().partitions]
    return len(states) == partitions and set(states) == {PartitionState.PARTITION_STATE_ONLINE}


def put_all(endpoints: Sequence[str], count: int, value: Callable[[], bytes] = lambda: VALUE) -> None:
    """Write the first `count` keys; `value` returns the value of the next key. Raises MinkaError if several
    tries fail.
    """
    with Client(endpoints, keyspace=KEYSPACE, timeout=30) as client:
        for first in range(0, count, _LOAD_BATCH):
            pairs = {key(number): value() for number in range(first, min(first + _LOAD_BATCH, count))}
            for attempt in range(_LOAD_ATTEMPTS):
                try:
                    client.put_many(pairs)
                    break
                except MinkaError:  # on a busy machine a node may lose its clearance; to write again is harmless
                    if attempt == _LOAD_ATTEMPTS - 1:
                        raise
                    time.sleep(1)
