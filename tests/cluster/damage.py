"""Helpers that damage one file in a node's data directory, and judge the cluster's answers after that."""

import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from minka import Client
from minka.admin.control import Control
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster, LocalNode
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.cluster import QUICK, eventually, settled, wait_settled

CONFIG: Final = {**QUICK, "storage": {"log_retention_mib": 1}}
VICTIM: Final = {1: "athens", 3: "byzantium"}
PARTITIONS: Final = 2
ROWS: Final = {b"key-%04d" % i: b"%04d" % i * 5000 for i in range(700)}  # each partition flushes several times
LATER: Final = {b"later-%03d" % i: b"%d" % i for i in range(50)}
MEANWHILE: Final = {b"meanwhile-%03d" % i: b"%d" % i for i in range(50)}
REGISTERED: Final = "member: registered"
REFUSALS: Final = ("CORRUPT_DATA", "DATA_DIRECTORY_ROLLED_BACK")

# By the kind of file in a database's folder: the pattern of the file's name. If several names match, the tests damage
# the last file.
DATABASE_FILES: Final = {
    "CURRENT": "CURRENT",
    "MANIFEST": "MANIFEST-*",
    "OPTIONS": "OPTIONS-*",
    "SST": "*.sst",
    "WAL": "*.log",
    "IDENTITY": "IDENTITY",
    "LOCK": "LOCK",
}
FILES: Final = {
    **{f"log/{kind}": f"log/{pattern}" for kind, pattern in DATABASE_FILES.items()},
    **{f"partition/{kind}": f"partitions/1/{pattern}" for kind, pattern in DATABASE_FILES.items()},
    "log.mark": "log.mark",
    "identity.json": "identity.json",
    "LOCK": "LOCK",
}
FOLDERS: Final = {"log": "log", "partition": "partitions/1"}


def deleted(path: Path, _: Path) -> None:
    """Delete the file or folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def truncated(path: Path, _: Path) -> None:
    """Remove the file's second half."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flipped(path: Path, _: Path) -> None:
    """Flip a bit in the middle of the file."""
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def zeroed(path: Path, _: Path) -> None:
    """Fill the file with zeros."""
    path.write_bytes(bytes(path.stat().st_size))


def older(path: Path, old: Path) -> None:
    """Replace the file with an older copy."""
    if path.is_dir():
        shutil.rmtree(path)
        shutil.copytree(old, path)
    else:
        path.write_bytes(old.read_bytes())


DAMAGES: Final[Mapping[str, Callable[[Path, Path], None]]] = {
    "deleted": deleted,
    "truncated": truncated,
    "flipped": flipped,
    "zeroed": zeroed,
    "older": older,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the matrix of damage: the damaged file, the kind of damage, the number of replicas, and whether the
    node runs when the file is damaged.
    """

    file: str
    damage: str
    replicas: int
    running: bool

    def __str__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"{self.file} {self.damage}, {self.replicas} replicas, {state}"


def cells(replicas: int, running: bool) -> list[Cell]:
    """Return a cell for each file and kind of damage. In all of these cells, the number of replicas is `replicas`, and
    the node runs if `running` is true.
    """
    files = [Cell(file, damage, replicas, running) for file in FILES for damage in DAMAGES]
    return files + [Cell(folder, damage, replicas, running) for folder in FOLDERS for damage in ("deleted", "older")]


class Template:
    """The directories of a cluster with data, as `kill -9` of its nodes left them. The test of a cell uses a copy."""

    def __init__(self, path: Path, replicas: int) -> None:
        self.path = path
        self.old = path.with_name(f"{path.name}-old")
        self.replicas = replicas
        with LocalCluster(replicas, path, config=CONFIG) as cluster, Control(cluster.endpoints) as control:
            control.create_keyspace("flights", PARTITIONS, HashFunction.HASH_FUNCTION_MURMUR3, replicas=replicas)
            wait_settled(control, replicas)
            with Client(cluster.endpoints, keyspace="flights", timeout=30.0) as client:
                rows = list(ROWS.items())
                for start in range(0, len(rows) // 2, 50):
                    client.put_many(dict(rows[start : start + 50]))
                copied(cluster.node(VICTIM[replicas]).data_dir, self.old)
                for name in cluster.nodes:  # in a restart, RocksDB makes tables from the WAL of the log database
                    cluster.kill(name)
                for name in cluster.nodes:
                    cluster.restart(name, ready=False)
                wait_settled(control, replicas)
                for start in range(len(rows) // 2, len(rows), 50):
                    client.put_many(dict(rows[start : start + 50]))
                client.put_many(LATER)
            marked(cluster, time.time())
            for name in cluster.nodes:
                cluster.kill(name)

    def begin(self, path: Path) -> LocalCluster:
        """Make a copy of the cluster, without starting it."""
        shutil.copytree(self.path, path)
        return LocalCluster(self.replicas, path, config=CONFIG)

    def harm(self, cell: Cell, data_dir: Path) -> bool:
        """Damage the cell's file; returns False if the node has no such file."""
        pattern = FILES.get(cell.file) or FOLDERS[cell.file]
        found, old = sorted(data_dir.glob(pattern)), sorted(self.old.glob(pattern))
        if not found or (cell.damage == "older" and not old):
            return False
        DAMAGES[cell.damage](found[-1], old[-1] if old else found[-1])
        return True


def copied(source: Path, target: Path) -> None:
    """Copy the directory of a running node; repeat that until no file vanishes during the copy."""
    while True:
        try:
            shutil.copytree(source, target)
            return
        except shutil.Error:
            shutil.rmtree(target)


def marked(cluster: LocalCluster, written_at: float) -> None:
    """Wait until all running nodes have updated their `log.mark` after `written_at`, a time in seconds."""

    def is_marked(node: LocalNode) -> bool:
        return not node.running or (node.data_dir / "log.mark").stat().st_mtime > written_at - 0.01

    eventually("the marks", lambda: all(map(is_marked, cluster.nodes.values())))


def outcome(cell: Cell, template: Template, path: Path) -> str:
    """Damage the cell's file, and return the outcome for the cluster in a few words. Raises AssertionError if this
    outcome isn't allowed.
    """
    cluster = template.begin(path)
    victim = cluster.node(VICTIM[cell.replicas])
    victim.log.unlink()
    registered = 0
    rows = {**ROWS, **LATER}
    if not cell.running and not template.harm(cell, victim.data_dir):
        return "no such file"
    for name in cluster.nodes:
        cluster.restart(name, ready=False)
    try:
        with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="flights") as client:
            if cell.running:
                wait_settled(control, cell.replicas)
                if not template.harm(cell, victim.data_dir):
                    return "no such file"
                more, written_at = written(client), time.time()
                rows |= more
                answered(client, rows)
                if victim.running and more and cell.file != "log.mark":
                    marked(cluster, written_at)
                registered = victim.log.read_text().count(REGISTERED)
                if victim.running:
                    cluster.kill(victim.name)
                cluster.restart(victim.name, ready=False)
            return judged(cell, cluster, control, client, rows, registered)
    finally:
        cluster.stop()
        shutil.rmtree(path)


def written(client: Client) -> dict[bytes, bytes]:
    """Write while the file is damaged, and return the acknowledged rows."""
    done: dict[bytes, bytes] = {}
    for key, value in MEANWHILE.items():
        try:
            client.put(key, value, timeout=3.0)
        except MinkaError:
            break
        done[key] = value
    return done


def answered(client: Client, rows: Mapping[bytes, bytes]) -> str:
    """Read all rows, and check that no value is wrong. Returns the code with which the nodes refused a read; "" if they
    refused none.
    """
    refused = ""
    keys = list(rows)
    for start in range(0, len(keys), 40):
        part = keys[start : start + 40]
        try:
            found = client.get_many(part, timeout=3.0)
        except MinkaError as error:
            refused = error.code.name
            if error.code is not Code.CORRUPT_DATA:
                break  # no node answers
            continue
        wrong = [key for key in part if found.get(key) != rows[key]]
        assert not wrong, f"{len(wrong)} keys are wrong, such as {wrong[0]!r}: {str(found.get(wrong[0]))[:40]}"
    return refused


def judged(
    cell: Cell, cluster: LocalCluster, control: Control, client: Client, rows: Mapping[bytes, bytes], registered: int
) -> str:
    """Return the outcome of the victim's start: the node has ended with a reason, or gives only right answers, or
    refuses reads each time. `registered`: how often the victim had registered before this start.
    """
    victim = cluster.node(VICTIM[cell.replicas])

    def has_started() -> bool:
        if victim.log.read_text().count(REGISTERED) <= registered:
            return False
        status = control.status()
        table = status.table
        whole = all(len(row.isr) == cell.replicas for row in table.partitions) and not status.damaged
        return status.from_controller and settled(table, cell.replicas) and whole

    deadline = time.monotonic() + 25
    refused = ""
    while victim.running and time.monotonic() < deadline:
        refused = answered(client, rows)
        try:
            if has_started() and not refused:
                break
        except MinkaError:
            continue
        if cell.replicas == 1 and refused == Code.CORRUPT_DATA.name:
            assert answered(client, rows) == refused, "the node refuses the read each time"
            (told,) = eventually("what is told", lambda: list(control.status().damaged) or None)
            assert told.node_id == victim.name
            assert "CORRUPT_DATA" in told.reason
            check_said(cell, victim.log.read_text())
            return f"refused: {refused}"
    said = victim.log.read_text()
    if not victim.running:
        if cell.replicas > 1:
            eventually("the others' answers", lambda: not answered(client, rows))
        check_said(cell, said)
        code = re.findall(r"^minkad: (\w+):", said, re.MULTILINE)[-1:]
        assert set(code) & set(REFUSALS), said[-2000:]
        return f"ended: {code[0]}" + (", others right" if cell.replicas > 1 else "")
    assert not refused, f"still refused: {refused}: {said[-2000:]}"
    assert has_started(), f"not whole again: {said[-2000:]}"
    if "a copy is damaged" not in said:
        return "right"
    return "mended from the log" if "made again from the log" in said else "rebuilt from another replica"


def check_said(cell: Cell, said: str) -> None:
    """Check that the log names the damaged file or its folder. If the node ended with DATA_DIRECTORY_ROLLED_BACK, the
    log may name neither, since the controller has compared only numbers of starts.
    """
    assert "Traceback" not in said, said[-3000:]
    if "minkad: DATA_DIRECTORY_ROLLED_BACK: " in said:
        return
    place = cell.file.partition("/")[0].replace("partition", "partitions/1")
    assert any(place in line for line in said.splitlines() if any(code in line for code in REFUSALS)), said[-2000:]
