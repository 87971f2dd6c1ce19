"""Measures the time in which a restart restores the state from a snapshot and a Raft log of a million entries.

This process writes the log through the real storage. A new process opens the log database, the Raft log and the state,
and runs the Ready loop until all committed entries are applied. The start of Python and elections don't count.
"""

import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from benchmarks.measure import MINKA, Goal, Report, Sample, main
from minka.v1.cluster_pb2 import Cluster, HashFunction, Keyspace, Node, NodeState, Partition, PartitionState
from minka.v1.raft_pb2 import Commands, ConfState, Entry, HardState, Message, Snapshot, SnapshotMetadata
from minka.v1.records_pb2 import KeyspaceCreated, PartitionsChanged, Record, RecordBatch
from minkad.coordinator.raft_driver import RaftDriver
from minkad.core.raft import Config, RawNode
from minkad.core.raft.types import Ready
from minkad.core.state import State
from minkad.storage.log_database import LogDatabase
from minkad.storage.raft_storage import RaftStorage

ENTRIES: Final = 1_000_000
QUICK_ENTRIES: Final = 100_000
PARTITIONS: Final = 1024
VOTERS: Final = ConfState(voters=[1, 2, 3])
GOAL_S: Final = 3.0
SNAPSHOT_ENTRIES: Final = 10_000
CHUNK: Final = 5_000
TERM: Final = 2


def run(report: Report) -> None:
    """Measure restarts. The log has all entries, since followers may need them. The last `behind` entries are newer
    than the snapshot, so the restart applies them.
    """
    count = QUICK_ENTRIES if report.options.quick else ENTRIES
    report.notes.append(
        f"Each entry is the changed row of one of {PARTITIONS:,} partitions. A snapshot is due every 10,000 entries if "
        "coordinator.snapshot_entries does not say otherwise: no node has many more to apply."
    )
    for behind, goal in ((0, Goal(at_most=GOAL_S)), (SNAPSHOT_ENTRIES, Goal(at_most=GOAL_S)), (100_000, None)):
        case = report.case(f"{count:,} entries, {behind:,} to be applied", "s", goal=goal)
        with tempfile.TemporaryDirectory(prefix="minka-") as directory:
            asyncio.run(_write(Path(directory), count, count - behind))
            for number in range(report.options.rounds):
                copy = f"{directory}/{number}"  # since a restart changes the log
                shutil.copytree(directory, copy, ignore=lambda _, names: [name for name in names if name.isdigit()])
                report.add(case, MINKA, _restart(copy))


def _restart(directory: str) -> Sample:
    command = [sys.executable, "-m", "benchmarks.raft_restart", "--restart", directory]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300).stdout)
    return Sample(sum(answer.values()), details={f"{step}_s": seconds for step, seconds in answer.items()})


# The log


def _first_state() -> State:
    state = State()
    node = Node(id="athens", raft_id=1, state=NodeState.NODE_STATE_LIVE)
    keyspace = Keyspace(id=1, name="flights", partition_count=PARTITIONS, hash=HashFunction.HASH_FUNCTION_MURMUR3)
    rows = [
        Partition(
            id=number + 1, keyspace_id=1, slot=number, replicas=["athens"], partition_epoch=1, generation=1,
            state=PartitionState.PARTITION_STATE_NEW,
        )
        for number in range(PARTITIONS)
    ]  # fmt: skip
    state.apply(Record(cluster_created=Cluster(id="1", name="benchmark")))
    state.apply(Record(node_changed=node))
    state.apply(Record(keyspace_created=KeyspaceCreated(keyspace=keyspace, partitions=rows)))
    return state


def _row(number: int, epoch: int) -> Partition:
    return Partition(
        id=number + 1, keyspace_id=1, slot=number, replicas=["athens"], isr=["athens"], leader="athens",
        leader_epoch=1, partition_epoch=epoch, generation=1, state=PartitionState.PARTITION_STATE_ONLINE,
    )  # fmt: skip


def _entries(count: int) -> Iterator[Entry]:
    """Yield the entries 2 to count + 1."""
    for number in range(count):
        row = _row(number % PARTITIONS, 2 + number // PARTITIONS)
        batch = RecordBatch(records=[Record(partitions_changed=PartitionsChanged(partitions=[row]))], time_ms=number)
        data = Commands(commands=[batch.SerializeToString()]).SerializeToString()
        yield Entry(term=TERM, index=number + 2, data=data)


async def _write(directory: Path, count: int, covered: int) -> None:
    """Write a log of `count` committed entries, and a snapshot after the first `covered` ones."""
    db = LogDatabase.open(directory)
    try:
        log, state = RaftStorage(db), _first_state()
        first = Snapshot(data=state.to_snapshot(), metadata=SnapshotMetadata(conf_state=VOTERS, index=1, term=1))
        log.stage(_ready([], HardState(term=1, commit=1), first))
        entries = _entries(count)
        while chunk := list(islice(entries, CHUNK)):
            log.stage(_ready(chunk, HardState(term=TERM, commit=chunk[-1].index), None))
            await db.sync()
        if covered:
            for number in range(covered - PARTITIONS, covered):
                epoch = 2 + number // PARTITIONS
                row = _row(number % PARTITIONS, epoch)
                state.partitions[row.id] = row
            log.stage_snapshot(1 + covered, TERM, VOTERS, state.to_snapshot())
            await db.sync()
    finally:
        db.close()


def _ready(entries: list[Entry], hard_state: HardState, snapshot: Snapshot | None) -> Ready:
    return Ready(None, hard_state, [], entries, snapshot, [], [], [], True)


# The restart, in a separate process


class Machine:
    """A state machine that only applies commands to the coordinator's state."""

    def __init__(self, state: State) -> None:
        self.state = state

    def apply(self, data: bytes) -> None:
        """Apply a command of a committed entry."""
        self.state.apply_batch(RecordBatch.FromString(data))

    def capture(self) -> Callable[[], bytes]:
        """Capture the state for a snapshot."""
        return self.state.capture().encode

    def decode(self, snapshot: bytes) -> State:
        """Fail: no snapshot arrives during this restart."""
        raise AssertionError("nobody sends a snapshot here")

    def restore(self, decoded: State) -> None:
        """Fail: no snapshot arrives during this restart."""
        raise AssertionError("nobody sends a snapshot here")


class Nowhere:
    """A transport that loses all messages, since the other voters don't exist."""

    def send(self, messages: Sequence[Message]) -> None:
        """Lose the messages."""


class Steps:
    """The seconds of each step, in the order of the steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def done(self, step: str) -> None:
        """Note the time of the step that has just ended."""
        now = time.perf_counter()
        self.seconds[step] = now - self._since
        self._since = now


async def _measure_restart(directory: Path) -> dict[str, float]:
    steps = Steps()
    db = LogDatabase.open(directory)
    steps.done("database")
    raft_log = RaftStorage(db)
    steps.done("log")
    snapshot = raft_log.snapshot()
    machine = Machine(State.from_snapshot(snapshot.data))
    steps.done("snapshot")
    hard_state, conf_state = raft_log.initial_state()
    config = Config(id=1, storage=raft_log, random=random.Random(1).randrange, applied=snapshot.metadata.index)
    applied = asyncio.Event()

    def on_progress() -> None:
        if driver.applied_index >= hard_state.commit:
            applied.set()

    driver = RaftDriver(
        RawNode(config), raft_log, db, Nowhere(), machine,
        tick_seconds=0.05, snapshot_entries=SNAPSHOT_ENTRIES, conf_state=conf_state, on_progress=on_progress,
    )  # fmt: skip
    driving = asyncio.create_task(driver.run())
    await applied.wait()
    steps.done("apply")
    assert {row.state for row in machine.state.partitions.values()} == {PartitionState.PARTITION_STATE_ONLINE}
    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)
    db.close()
    return steps.seconds


if __name__ == "__main__":
    if sys.argv[1:2] == ["--restart"]:
        print(json.dumps(asyncio.run(_measure_restart(Path(sys.argv[2])))))
    else:
        main("raft_restart", __doc__.splitlines()[0], run)
