"""A node's spool, which keeps the files of loads."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from minka.bulk.row_digest import Digest
from minka.bulk.sst_files import Written, checksum_of, write_sst
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Node, NodeState
from minka.v1.load_api_pb2 import FetchRequest
from minka.v1.loads_pb2 import Load, LoadFile, LoadPart, LoadState
from minkad.core.state import LoadTable, State
from minkad.loads import fetching as fetching_module
from minkad.loads import spool as spool_module
from minkad.loads import uploading as module
from minkad.loads.collecting import Collecting
from minkad.loads.fetching import Fetching
from minkad.loads.spool import Spool
from minkad.loads.throttle import Throttle
from minkad.loads.uploading import Uploading
from minkad.process.rate_limits import RateLimits
from tests.own_table import Table
from tests.unit.client.asking import until

_S = LoadState


def plenty(_: int) -> None:
    """Raise no error, since the disk has room for any size."""


def written(path: Path, rows: int, start: int = 0) -> tuple[LoadFile, bytes]:
    """Write a file of rows, with the keys from `start` on."""
    found: Written | None = write_sst(path, ((b"%06d" % i, b"value %d" % i) for i in range(start, start + rows)))
    assert found is not None
    file = LoadFile(name=path.stem, bytes=found.bytes, rows=rows, checksum=found.checksum, partition_id=1)
    file.digest.CopyFrom(found.digest.to_proto())
    return file, path.read_bytes()


async def chunks(data: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def on_disk(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def refused(code: Code, call: Coroutine[Any, Any, object]) -> MinkaError:
    with pytest.raises(MinkaError) as caught:
        await call
    assert caught.value.code is code, caught.value
    return caught.value


async def test_a_file_is_received_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    file, data = written(tmp_path / "one.sst", 1000)
    spool = Spool(tmp_path / "spool", plenty)
    await spool.start()
    await refused(Code.INVALID_ARGUMENT, spool.receive(7, file, chunks(data[:-1])))
    await refused(Code.INVALID_ARGUMENT, spool.receive(7, file, chunks(data + b"x")))
    await refused(Code.CORRUPT_DATA, spool.receive(7, file, chunks(b"x" + data[1:])))
    assert on_disk(spool.folder) == []
    await spool.receive(7, file, chunks(data))
    assert spool.has(7, "one", file.checksum)
    assert b"".join([part async for part in spool.read(7, "one")]) == data
    (spool.folder / "parts" / "torn").write_bytes(b"half of it")
    (spool.folder / "7" / "gone.sst.about").write_bytes(b"")
    await spool.close()
    again = Spool(tmp_path / "spool", plenty)
    await again.start()
    assert [one.name for one in again.files(7)] == ["one"]
    assert again.find(7, "one") == file
    assert on_disk(again.folder) == ["7/one.sst", "7/one.sst.about"]


async def test_a_file_without_room_is_refused_at_once(tmp_path: Path) -> None:
    """TiDB's issue 33446: an import went on trying for 16 hours while the disk was full."""

    def small(size: int) -> None:
        if size > 100:
            raise MinkaError(Code.DISK_LOW, f"{size} bytes exceed the room")

    file, data = written(tmp_path / "one.sst", 1000)
    spool = Spool(tmp_path / "spool", small)
    content = chunks(data)
    error = await refused(Code.DISK_FULL, spool.receive(7, file, content))
    assert await anext(content) == data[:1000], "the spool has read none of the content"
    assert not error.code.info.retriable
    assert on_disk(spool.folder) == []


async def test_a_damaged_file_is_found_and_removed(tmp_path: Path) -> None:
    file, data = written(tmp_path / "one.sst", 1000)
    spool = Spool(tmp_path / "spool", plenty)
    await spool.receive(7, file, chunks(data), is_checked=True)
    path = spool.path(7, "one")
    path.write_bytes(data[:500] + bytes([data[500] ^ 1]) + data[501:])
    await refused(Code.CORRUPT_DATA, spool.link(7, "one", file.checksum))
    assert not spool.files(7)
    await refused(Code.UNKNOWN_FILE, spool.link(7, "one", file.checksum))
    assert on_disk(spool.folder) == []


class Reads:
    """The checks of files on threads. Each one takes a thread until `may_end` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.at_once = self.most_at_once = 0
        self.may_end = threading.Event()
        self._lock = threading.Lock()
        monkeypatch.setattr(spool_module, "checksum_of", self._read)

    def _read(self, path: Path) -> int:
        with self._lock:
            self.begun.append(path.stem)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        assert self.may_end.wait(5)
        with self._lock:
            self.at_once -= 1
        return checksum_of(path)


async def impatient(check: Coroutine[Any, Any, None]) -> None:
    """Wait for a check only for a moment, like a leader that lets a follower get a file."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await check


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    reads = Reads(monkeypatch)
    yield reads
    reads.may_end.set()


async def test_a_check_goes_on_when_nobody_waits_for_it_any_longer(tmp_path: Path, reads: Reads) -> None:
    """Otherwise, a file that takes longer to read than its leader waits would never count as checked."""
    file, data = written(tmp_path / "one.sst", 1000)
    spool = Spool(tmp_path / "spool", plenty)
    await spool.receive(7, file, chunks(data), is_checked=True)
    for _ in range(3):
        await impatient(spool.verify(7, "one", file.checksum))
    reads.may_end.set()
    await spool.verify(7, "one", file.checksum)
    await spool.discard(await spool.link(7, "one", file.checksum))
    assert reads.begun == ["one"]
    await spool.close()


async def test_a_damaged_file_is_removed_although_nobody_waits_for_its_check(tmp_path: Path, reads: Reads) -> None:
    file, data = written(tmp_path / "one.sst", 1000)
    spool = Spool(tmp_path / "spool", plenty)
    await spool.receive(7, file, chunks(data), is_checked=True)
    spool.path(7, "one").write_bytes(data[:-1] + b"?")
    await impatient(spool.verify(7, "one", file.checksum))
    reads.may_end.set()
    await until(lambda: not spool.files(7))
    await until(lambda: on_disk(spool.folder) == [])
    await spool.close()


async def test_two_files_are_checked_at_a_time(tmp_path: Path, reads: Reads) -> None:
    """Clients' reads and syncs need the other threads. A file keeps its place in the queue while nobody waits for it,
    and all checks of a file take one place.
    """
    file, data = written(tmp_path / "one.sst", 1000)
    spool = Spool(tmp_path / "spool", plenty)
    names = [f"file-{n}" for n in range(6)]
    for name in names:
        file.name = name
        await spool.receive(7, file, chunks(data), is_checked=True)
    await asyncio.gather(*(impatient(spool.verify(7, name, file.checksum)) for name in names for _ in range(2)))
    await until(lambda: len(reads.begun) >= 2)
    assert reads.begun == names[:2]
    reads.may_end.set()
    await until(lambda: len(reads.begun) == len(names))
    await asyncio.gather(*(spool.verify(7, name, file.checksum) for name in names))
    assert (sorted(reads.begun), reads.most_at_once) == (names, 2)
    await spool.close()


async def test_the_end_of_the_node_gives_the_checks_up(tmp_path: Path, reads: Reads) -> None:
    file, data = written(tmp_path / "one.sst", 1000)
    spool = Spool(tmp_path / "spool", plenty)
    for file.name in "one", "two", "three":
        await spool.receive(7, file, chunks(data), is_checked=True)
    await asyncio.gather(*(impatient(spool.verify(7, name, file.checksum)) for name in ("one", "two", "three")))
    await until(lambda: len(reads.begun) >= 2)
    asyncio.get_running_loop().call_later(0.05, reads.may_end.set)  # a thread can't be interrupted
    await spool.close()
    assert (reads.begun, reads.at_once) == (["one", "two"], 0)


async def test_a_file_is_fetched_from_a_node_that_has_it_whole(tmp_path: Path) -> None:
    """Three nodes are asked: the first has a damaged file, the second no file, and the third a whole one."""
    file, data = written(tmp_path / "one.sst", 1000)
    asked: list[str] = []

    async def fetch(node: str, request: FetchRequest) -> AsyncIterator[bytes]:
        asked.append(node)
        if node == "byzantium":
            raise MinkaError(Code.UNKNOWN_FILE, "no such file")
        yield file.SerializeToString()
        async for chunk in chunks(data if node == "delphi" else data[:-1] + b"?"):
            yield chunk

    spool = Spool(tmp_path / "spool", plenty)
    table = Table(State())
    for node in "athens", "byzantium", "cyrene", "delphi":
        table.state.nodes[node] = Node(id=node, state=NodeState.NODE_STATE_LIVE)
    fetching = Fetching("athens", spool, fetch, table)
    await asyncio.gather(*(fetching.ensure(7, file, ["cyrene"]) for _ in range(3)))
    assert asked == ["cyrene", "byzantium", "delphi"], "the file is fetched once for all three, and not from this node"
    assert spool.has(7, "one", file.checksum)
    del table.state.nodes["delphi"]
    down = table.state.nodes.pop("cyrene")
    await refused(Code.UNKNOWN_FILE, fetching.ensure(8, file))
    table.state.nodes["cyrene"] = down
    await refused(Code.UNREACHABLE, fetching.ensure(8, file))


async def test_a_node_that_says_nothing_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are up are asked first, and a node whose disk hangs holds up nobody for long."""
    monkeypatch.setattr(fetching_module, "_SILENCE_SECONDS", 0.05)
    file, data = written(tmp_path / "one.sst", 1000)
    asked: list[str] = []

    async def fetch(node: str, request: FetchRequest) -> AsyncIterator[bytes]:
        asked.append(node)
        yield file.SerializeToString()
        if node == "byzantium":
            await asyncio.Future()
        async for chunk in chunks(data):
            yield chunk

    spool, table = Spool(tmp_path / "spool", plenty), Table(State())
    table.state.nodes["byzantium"] = Node(id="byzantium", state=NodeState.NODE_STATE_LIVE)
    fetching = Fetching("athens", spool, fetch, table)
    await fetching.ensure(7, file, ["delphi", "byzantium"])
    assert asked == ["byzantium", "delphi"]
    assert spool.has(7, "one", file.checksum)


async def test_the_files_for_a_partition(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", plenty)
    file, data = written(tmp_path / "one.sst", 10)
    for number, name in ((7, "one"), (7, "two"), (8, "one")):
        file.name = name
        await spool.receive(number, file, chunks(data), is_checked=True)
    again = Spool(tmp_path / "spool", plenty)
    await again.start()
    for one in spool, again:
        assert file.partition_id in one.partitions
        assert {(number, found.name) for number, found in one.files_for(file.partition_id)} == {
            *((7, "one"), (7, "two"), (8, "one"))
        }
        await one.remove(7, ["one", "two"])
        assert [(number, found.name) for number, found in one.files_for(file.partition_id)] == [(8, "one")]
        await one.remove(8, ["one"])
        assert file.partition_id not in one.partitions
        assert one.files_for(file.partition_id) == []


def table_with(loads: Iterable[Load], parts: Iterable[LoadPart], next_number: int = 8) -> Table:
    table = Table(State())
    table.state.loads = LoadTable({load.number: load for load in loads}, next_number=next_number)
    for part in parts:
        table.state.loads.parts.setdefault(part.load_number, {})[part.partition_id] = part
    return table


def uploading(spool: Spool, *loads: Load, parts: Sequence[LoadPart] = ()) -> Uploading:
    clock = asyncio.get_running_loop().time
    return Uploading(spool, table_with(loads, parts), RateLimits(clock), Throttle(clock, lambda: (0.0, 0)))


async def test_files_are_accepted_only_for_loads_that_are_staged(tmp_path: Path) -> None:
    file, data = written(tmp_path / "one.sst", 10)
    other, other_data = written(tmp_path / "other.sst", 20)
    spool, load = Spool(tmp_path / "spool", plenty), Load(id="seven", number=7, state=_S.LOAD_STATE_STAGING)
    uploads = uploading(spool, load, parts=[LoadPart(load_number=7, partition_id=1, name="one", checksum=9)])
    await uploads.upload(7, file, chunks(data))
    await uploads.upload(7, file, chunks(b""))  # accepted: the file is there already
    other.name = "one"
    await refused(Code.INVALID_ARGUMENT, uploads.upload(7, other, chunks(other_data)))
    await uploads.upload(9, other, chunks(other_data))  # accepted: this node has not heard of the load yet
    await refused(Code.UNKNOWN_LOAD, uploads.upload(3, file, chunks(data)))
    load.state = _S.LOAD_STATE_COMMITTED
    await refused(Code.LOAD_ENDED, uploads.upload(7, other, chunks(other_data)))
    await spool.close()


async def test_an_upload_is_refused_once_its_load_has_ended(tmp_path: Path) -> None:
    file, data = written(tmp_path / "one.sst", 1000)
    spool, load = Spool(tmp_path / "spool", plenty), Load(id="seven", number=7, state=_S.LOAD_STATE_STAGING)
    sent = 0

    async def slowly() -> AsyncIterator[bytes]:
        nonlocal sent
        async for chunk in chunks(data):
            sent += 1
            if sent == 2:
                load.state = _S.LOAD_STATE_ABORTED
            yield chunk

    await refused(Code.LOAD_ENDED, uploading(spool, load).upload(7, file, slowly()))
    assert sent == 2
    await spool.close()


async def test_a_file_that_all_nodes_have_lost_can_be_uploaded_again(tmp_path: Path) -> None:
    file, data = written(tmp_path / "one.sst", 10)
    part = LoadPart(load_number=7, partition_id=1, name="one", checksum=file.checksum)
    spool, load = Spool(tmp_path / "spool", plenty), Load(id="seven", number=7, state=_S.LOAD_STATE_COMMITTED)
    await uploading(spool, load, parts=[part]).upload(7, file, chunks(data))
    assert spool.has(7, "one", file.checksum)
    await spool.close()


async def test_files_are_cut_by_ranges_and_joined_again(tmp_path: Path) -> None:
    spool, load = Spool(tmp_path / "spool", plenty), Load(id="seven", number=7, state=_S.LOAD_STATE_STAGING)
    uploads = uploading(spool, load)
    for name, rows, start in (("low", 500, 0), ("high", 300, 500)):
        file, data = written(tmp_path / f"{name}.sst", rows, start)
        await spool.receive(7, file, chunks(data), is_checked=True)
    bounds = [b"", b"000100", b"000600", b"000700", b"000700x", b""]
    targets = [
        LoadFile(partition_id=place, name=f"cut-{place}", start_key=start, end_key=end)
        for place, (start, end) in enumerate(pairwise(bounds), 1)
    ]
    made = await uploads.cut(7, ["low", "high"], targets)
    assert [(one.partition_id, one.rows) for one in made] == [(1, 100), (2, 500), (3, 100), (4, 1), (5, 99)]
    total = Digest()
    for one in made:
        total += Digest.from_proto(one.rows, one.digest)
        assert spool.has(7, one.name, one.checksum)
    (whole,) = await uploads.cut(7, [one.name for one in made], [LoadFile(partition_id=9, name="whole")])
    assert Digest.from_proto(whole.rows, whole.digest) == total
    await refused(Code.INVALID_ARGUMENT, uploads.cut(7, ["low"], targets[:1]))
    await refused(Code.UNKNOWN_FILE, uploads.cut(7, ["none"], targets))
    names = {one.name for one in spool.files(7)}
    assert names == {"low", "high", "whole", *(f"cut-{place}" for place in range(1, 6))}, "the originals stay"
    assert not [name for name in on_disk(spool.folder) if name.startswith("parts/")]
    await uploads.close()


async def test_rows_lost_in_a_cut_are_noticed(tmp_path: Path) -> None:
    spool, load = Spool(tmp_path / "spool", plenty), Load(id="seven", number=7, state=_S.LOAD_STATE_STAGING)
    uploads = uploading(spool, load)
    file, data = written(tmp_path / "one.sst", 100)
    file.digest.sum += 1  # now the digest isn't that of the rows
    await spool.receive(7, file, chunks(data), is_checked=True)
    await refused(Code.CORRUPT_DATA, uploads.cut(7, ["one"], [LoadFile(partition_id=1, name="new")]))
    assert [one.name for one in spool.files(7)] == ["one"]
    await uploads.close()


async def test_files_that_no_load_needs_are_removed(tmp_path: Path) -> None:
    spool, held = Spool(tmp_path / "spool", plenty), table_with([], [], next_number=6)
    table = held.state.loads
    states = {
        1: _S.LOAD_STATE_STAGING,
        2: _S.LOAD_STATE_COMMITTED,
        3: _S.LOAD_STATE_ABORTED,
        4: _S.LOAD_STATE_DONE,
    }
    for number, state in states.items():
        table.rows[number] = Load(id=f"load-{number}", number=number, state=state)
    file, data = written(tmp_path / "one.sst", 10)
    other, other_data = written(tmp_path / "other.sst", 10)
    table.parts[2] = {1: LoadPart(load_number=2, partition_id=1, name="one")}
    for number in (1, 2, 3, 4, 5, 6):  # the table has forgotten load 5, and has not heard of load 6
        await spool.receive(number, file, chunks(data), is_checked=True)
        await spool.receive(number, other, chunks(other_data), is_checked=True)
    in_log = {(1, 4)}
    collecting = Collecting(spool, held, lambda *asked: asked in in_log)
    await collecting.collect()
    left = {number: sorted(one.name for one in spool.files(number)) for number in spool.numbers()}
    both = ["one", "other"]
    assert left == {1: both, 2: ["one"], 4: both, 6: both}
    in_log.clear()
    await collecting.collect()
    assert sorted(spool.numbers()) == [1, 2, 6]
    assert {name.split("/")[0] for name in on_disk(spool.folder)} == {"1", "2", "6"}


async def test_uploads_respect_their_rate_limit_and_give_way_to_clients(tmp_path: Path) -> None:
    """Uploads slow down when the mean time of clients' requests is more than three times as long as usual."""
    now, seconds, count = 0.0, 0.0, 0
    limits, throttle = RateLimits(lambda: now), Throttle(lambda: now, lambda: (seconds, count))
    slept: list[float] = []

    async def sleep(delay: float) -> None:
        nonlocal now
        slept.append(delay)
        now += delay

    async def upload(for_seconds: float, limit: int, wait: float) -> float:
        """Upload while clients make 100 requests a second; each request takes `wait` seconds. Returns the uploaded
        bytes a second.
        """
        nonlocal now, seconds, count
        began, taken = now, 0
        while now - began < for_seconds:
            async for part in limits.parts(bytes(1_000_000), lambda: (1, limit)):
                await throttle.take(len(part))
            now += 0.01
            taken += 1_000_000
            count += 1
            seconds += wait
        return taken / (now - began)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "sleep", sleep)
        assert 9e6 < await upload(5, 10_000_000, 0.001) < 11e6
        assert max(slept) <= 1.0
        assert 9e4 < await upload(50, 100_000, 0.001) < 11e4, "the limit holds even if one chunk takes ten seconds"
        free = await upload(5, 0, 0.001)
        assert free > 90e6
        busy = await upload(5, 0, 0.01)
        assert busy < free / 4
        assert await upload(20, 0, 0.001) > free / 2


async def test_a_stalled_upload_gives_its_place_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    monkeypatch.setattr(module, "_STALLED_S", 0.05)
    file, data = written(tmp_path / "one.sst", 100)
    spool = Spool(tmp_path / "spool", plenty)
    await spool.start()
    takes_in = uploading(spool, Load(number=1, state=_S.LOAD_STATE_STAGING))
    more = asyncio.Event()

    async def half(is_trickle: bool) -> AsyncIterator[bytes]:
        yield data[:10]
        while is_trickle and not more.is_set():
            await asyncio.sleep(0.005)
            yield b""
        await more.wait()
        yield data[10:]

    def of(name: str) -> LoadFile:
        found = LoadFile()
        found.CopyFrom(file)
        found.name = name
        return found

    still = [asyncio.create_task(takes_in.upload(1, of(f"half{n}"), half(n % 2 == 1))) for n in range(8)]
    await asyncio.sleep(0)
    await takes_in.upload(1, of("whole"), chunks(data))
    assert [one.name for one in spool.files(1)] == ["whole"]
    more.set()  # let the remaining uploads continue
    ended = await asyncio.gather(*still, return_exceptions=True)
    assert {one.code for one in ended if isinstance(one, MinkaError)} == {Code.OVERLOADED}
    await spool.close()
