"""The Raft log on disk gives the same answers as the one in memory, and notices damage."""

import random
import shutil
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minka.v1.raft_pb2 import ConfState, Entry, HardState, Snapshot, SnapshotMetadata
from minkad.core.raft.storage import Compacted, SnapOutOfDate, Unavailable
from minkad.core.raft.types import NO_LIMIT, Ready
from minkad.storage.log_database import LogDatabase
from minkad.storage.raft_storage import RaftStorage
from tests.unit.storage.crash import crashed_copy
from tests.vectors.memory_storage import MemoryStorage


def ready(
    entries: list[Entry] | None = None, hard_state: HardState | None = None, snapshot: Snapshot | None = None
) -> Ready:
    """A Ready with these contents to persist."""
    return Ready(None, hard_state, [], entries or [], snapshot, [], [], [], True)


class Both:
    """A log in memory and one on disk. Both take the same steps, and `restart` lets the one on disk crash."""

    def __init__(self, path: Path, tail_bytes: int) -> None:
        self.path = path
        self.tail_bytes = tail_bytes
        self.memory = MemoryStorage()
        self.crashes = 0
        self.db = LogDatabase.open(path / "0")
        self.log = RaftStorage(self.db, tail_bytes)

    async def step(self, rng: random.Random) -> None:
        """Do one random thing that a Raft node may do."""
        first, last = self.memory.first_index(), self.memory.last_index()
        term = self.memory.term(last)
        match rng.randrange(10):
            case 0 if last > first:
                await self.snapshot_and_compact(rng.randint(first, last), rng.randint(first, last))
            case 1:
                await self.install(last + rng.randint(1, 5), term + 1)
            case 2:
                await self.restart()
            case _:
                # A snapshot has only what is committed, which is never overwritten.
                start = rng.randint(max(first, last - 3, self.memory.snapshot().metadata.index + 1), last + 1)
                entries = [Entry(term=term + rng.choice([0, 0, 1]), index=start, data=rng.randbytes(rng.randrange(50)))]
                for index in range(start + 1, start + rng.randrange(1, 8)):
                    entries.append(Entry(term=entries[-1].term, index=index, data=rng.randbytes(rng.randrange(50))))
                await self.append(entries)

    async def append(self, entries: list[Entry]) -> None:
        """Append entries, with a hard state."""
        state = HardState(term=entries[-1].term, vote=1, commit=self.memory.first_index() - 1)
        self.log.stage(ready(entries, state))
        await self.db.sync()
        self.memory.append(entries)
        self.memory.set_hard_state(state)

    async def install(self, index: int, term: int) -> None:
        """Install a snapshot of the leader, and append an entry after it."""
        metadata = SnapshotMetadata(conf_state=ConfState(voters=[1, index]), index=index, term=term)
        snapshot = Snapshot(data=b"state at %d" % index, metadata=metadata)
        entry = Entry(term=term, index=index + 1)
        self.log.stage(ready([entry], HardState(term=term, commit=index), snapshot))
        await self.db.sync()
        self.memory.apply_snapshot(snapshot)
        self.memory.append([entry])
        self.memory.set_hard_state(HardState(term=term, commit=index))

    async def snapshot_and_compact(self, index: int, compact: int) -> None:
        """Make a snapshot on the node itself, and compact the log."""
        conf_state = ConfState(voters=[index])
        if index > self.memory.snapshot().metadata.index:
            self.memory.create_snapshot(index, conf_state, b"own")
            self.log.stage_snapshot(index, self.log.term(index), conf_state, b"own")
        compact = min(compact, self.memory.snapshot().metadata.index)
        if compact >= self.memory.first_index():
            self.memory.compact(compact)
            self.log.compact(compact)
        await self.db.sync()

    async def restart(self) -> None:
        """Restart the log on disk from a copy of its files."""
        self.crashes += 1
        copy = self.path / str(self.crashes)
        crashed_copy(self.db.path, copy)
        self.db.close()
        self.db = LogDatabase.open(copy)
        self.log = RaftStorage(self.db, self.tail_bytes)

    def check(self, rng: random.Random) -> None:
        """Check that both logs give the same answers to everything that the core may ask."""
        memory, log = self.memory, self.log
        first, last = memory.first_index(), memory.last_index()
        assert (log.first_index(), log.last_index()) == (first, last)
        assert log.initial_state() == memory.initial_state()
        assert log.snapshot() == memory.snapshot()
        assert [log.term(i) for i in range(first - 1, last + 1)] == [memory.term(i) for i in range(first - 1, last + 1)]
        for _ in range(5):
            lo = rng.randint(first, last + 1)
            hi = rng.randint(lo, last + 1)
            limit = rng.choice([0, 60, 200, NO_LIMIT])
            if lo < hi:
                assert log.entries(lo, hi, limit) == memory.entries(lo, hi, limit)


@pytest.mark.seeds(5)
@pytest.mark.parametrize("tail_bytes", [0, 200, 1 << 20])
async def test_the_log_on_disk_equals_the_one_in_memory(tmp_path: Path, seed: int, tail_bytes: int) -> None:
    """Both logs get the same random steps: appends that conflict, snapshots, compactions and restarts."""
    rng = random.Random(seed)
    both = Both(tmp_path, tail_bytes)
    try:
        for _ in range(40):
            await both.step(rng)
            both.check(rng)
    finally:
        both.db.close()


async def filled(db: LogDatabase) -> RaftStorage:
    """Bootstrap a log, and append the entries 2 to 11."""
    log = RaftStorage(db)
    log.bootstrap(ConfState(voters=[1, 2, 3]))
    log.stage(ready([Entry(term=1, index=i) for i in range(2, 12)]))
    await db.sync()
    return log


async def test_a_bootstrapped_log(tmp_path: Path) -> None:
    """After a bootstrap, the log looks as if its entry 1 had named the voters. A second bootstrap is refused."""
    db = LogDatabase.open(tmp_path)
    log = RaftStorage(db)
    assert log.is_empty()
    log.bootstrap(ConfState(voters=[1, 2, 3]))
    await db.sync()
    log = RaftStorage(db)
    state, conf_state = log.initial_state()
    assert (state.term, state.commit, list(conf_state.voters)) == (1, 1, [1, 2, 3])
    assert (log.first_index(), log.last_index(), log.term(1)) == (2, 1, 1)
    with pytest.raises(AssertionError, match="not empty"):
        log.bootstrap(ConfState(voters=[1]))
    db.close()


async def test_the_exceptions_that_the_raft_core_expects(tmp_path: Path) -> None:
    db = LogDatabase.open(tmp_path)
    log = await filled(db)
    log.stage_snapshot(8, 1, ConfState(voters=[1]), b"")
    log.compact(6)
    for call in (lambda: log.entries(6, 8, NO_LIMIT), lambda: log.term(5), lambda: log.compact(6)):
        with pytest.raises(Compacted):
            call()
    for call in (lambda: log.entries(11, 13, NO_LIMIT), lambda: log.term(12)):
        with pytest.raises(Unavailable):
            call()
    with pytest.raises(SnapOutOfDate):
        log.stage_snapshot(8, 1, ConfState(), b"")
    with pytest.raises(AssertionError, match="no snapshot"):
        log.compact(9)
    db.close()


async def test_a_lost_entry_is_noticed(tmp_path: Path) -> None:
    """The log notices the loss when it is opened, and when somebody reads the entry."""
    db = LogDatabase.open(tmp_path)
    await filled(db)
    log = RaftStorage(db)
    log.stage(ready([], HardState(term=1, commit=11)))
    db.delete(b"re" + (7).to_bytes(8, "big"))
    await db.sync()
    with pytest.raises(MinkaError) as caught:
        log.entries(2, 12, NO_LIMIT)
    assert caught.value.code is Code.CORRUPT_DATA
    with pytest.raises(MinkaError, match="an entry of 2 to 11 is missing"):
        RaftStorage(db)
    with pytest.raises(MinkaError, match="CORRUPT_DATA"):
        await db.sync()  # after the damage was found, the database refuses all writes
    db.close()


async def test_a_log_that_lost_its_end_is_noticed(tmp_path: Path) -> None:
    """The start notices that the commit index is beyond the end of the log."""
    db = LogDatabase.open(tmp_path)
    await filled(db)
    RaftStorage(db).stage(ready([], HardState(term=1, commit=11)))
    db.delete(b"re" + (11).to_bytes(8, "big"))
    await db.sync()
    with pytest.raises(MinkaError, match="committed"):
        RaftStorage(db)
    db.close()


async def write_tables(path: Path) -> Path:
    """Write entries to a table of RocksDB; returns the table's path."""
    db = LogDatabase.open(path)
    log = await filled(db)
    log.stage(ready([Entry(term=1, index=i, data=random.Random(i).randbytes(1000)) for i in range(12, 500)]))
    await db.sync()
    db.close()
    LogDatabase.open(path).close()  # writes the entries of the write-ahead log to a table
    (table,) = path.glob("*.sst")
    return table


async def test_a_flipped_bit_in_any_entry_is_found_at_the_start(tmp_path: Path) -> None:
    """The start checks all entries, even those that nothing else reads, and its error names the file."""
    table = await write_tables(tmp_path / "log")
    content = table.read_bytes()
    for place in range(10_000, 400_000, 130_000):
        damaged = tmp_path / str(place) / table.name
        shutil.copytree(table.parent, damaged.parent)
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        db = LogDatabase.open(damaged.parent)
        with pytest.raises(MinkaError, match=str(damaged)) as caught:
            RaftStorage(db)
        assert caught.value.code is Code.CORRUPT_DATA
        db.close()
