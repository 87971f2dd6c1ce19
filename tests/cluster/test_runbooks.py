"""Every command of docs/operations.md works as written. Commands that change something are typed twice: the second
time, they do the same again, or refuse. No data is lost.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from minka import Client
from minka.admin.control import Control
from minka.errors import MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.cluster import QUICK, eventually, wait_settled
from tests.cluster.runbooks import ROOT, Machine, block, blocks, inline, machine, shown

pytestmark = pytest.mark.timeout(480)
BEFORE = {b"before-%03d" % number: b"%d" % number for number in range(200)}
AFTER = {b"after-%03d" % number: b"%d" % number for number in range(200)}
NODES = ("athens", "byzantium", "cyrene")
_REAL = 'PATH=${{PATH#*:}}\nexec {} "$@"\n'  # a stand-in's last lines: run the machine's own command

INSTALL = "python3 -m venv /opt/minka"
AUTHORITY = "mkdir authority && openssl req"
CERTIFICATE = "mkdir athens && openssl req"
RESTART = "(for node in athens byzantium cyrene; do"
BACKUP = "(set -eu -- athens byzantium cyrene; at="
RESTORE = "(set -eu -- athens byzantium cyrene; backup="
REBUILD = "minkactl node rebuild cyrene &&"
EXPORT = "minkactl data export flights /backup/flights"  # its test, with Spark: tests/pipeline/test_runbook_export.py
LOST = "minkactl partitions --state offline"  # its test: tests/cluster/test_last_copies.py
CREATE = "$ minkactl keyspace create flights"
TYPED = (INSTALL, AUTHORITY, CERTIFICATE, RESTART, BACKUP, RESTORE, REBUILD, EXPORT, LOST, CREATE)
LOOKS = ("$ curl -s localhost:7401/readyz", "$ minkactl nodes", "$ minkactl status  ", "$ minkactl status\n")
NO_COMMANDS = {
    "node:": "a file of configuration",
    "minkad: INVALID_CONFIG: ": "what the daemon says",
    "MINKAD_MEMBERSHIP_FAILURE_TIMEOUT_MS=2000": "variables of the daemon's environment",
    "heartbeat_interval_ms × 2 ": "a formula",
    "WARNING cyrene ": "what the log says",
    "tls:": "a file of configuration",
    "12:34:56.789 INFO": "what the log says",
    '{"ts":': "what the log says",
    "minkad: STORAGE_FAILED: ": "what the daemon says",
    "minkad: QUORUM_ROLLED_BACK: ": "what the daemon says",
    "minkad: CORRUPT_DATA: ": "what the daemon says",
    "[Service]": "a part of a unit",
}

# Commands within sentences of the document. These change nothing, and work in any state of the cluster.
INLINE_LOOKS = {
    "minkactl keyspaces -o wide",
    "minkactl migrations",
    "minkactl pallets",
    "minkactl partitions",
    "minkactl partitions --node cyrene",
    "minkactl partitions --under-replicated",
    "minkactl partitions -o wide",
    "minkactl status",
    "minkactl version",
    "systemctl status minkad",
}
INLINE_TYPED = {
    "cat old-ca.pem new-ca.pem > ca.pem",
    "openssl x509 -noout -checkend 2592000 -in me.pem",
    "minkactl drain athens --decommission",
    "minkactl drain cyrene --decommission",
    "minkactl raft promote cyrene --instead-of VOTER",
    "minkactl raft remove cyrene",
    "systemctl reload minkad",
    "systemctl restart minkad",
    "systemctl stop minkad",
    "minkad --config FILE --validate-config",
}
_NAMED = "only names a command, without its arguments"
_OF_SYSTEMD = "it only shows what systemd has logged"
INLINE_NO_COMMANDS = {
    "chmod 400": "the mode that a key has to have",
    "chmod 640": "the mode that a key has to have",
    "chown minka": "the owner that a key has to have",
    "chown root:minka": "the owner that a key has to have",
    "journalctl -u minkad -p warning": _OF_SYSTEMD,
    "kill -9": "what happens to a process, not a command to type",
    "kill -CONT": _NAMED,
    "kill -STOP": _NAMED,
    "minkactl data load-report": "tests/pipeline/test_load_report.py; it only reads",
    "minkactl drain": _NAMED,
    "minkactl node rebuild": _NAMED,
    "minkactl partitions explain": _NAMED,
    "minkactl reassign": _NAMED,
    "systemctl edit minkad": "opens an editor; no minkad is touched",
    "systemctl status": _NAMED,
    "systemctl stop": _NAMED,
    "systemd-analyze security --offline=true configs/minkad.service": "tests/cluster/test_unit.py",
}


def test_no_command_is_left_out() -> None:
    known = [*TYPED, *LOOKS, *NO_COMMANDS]
    assert [one for one in blocks() if sum(one.startswith(beginning) for beginning in known) != 1] == []
    assert [beginning for beginning in known if not any(one.startswith(beginning) for one in blocks())] == []
    assert inline() == INLINE_LOOKS | INLINE_TYPED | set(INLINE_NO_COMMANDS)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config=QUICK) as running:
        with Control(running.endpoints) as control:
            control.create_keyspace("flights", 4, HashFunction.HASH_FUNCTION_MURMUR3)
        put(running, BEFORE)
        yield running


@pytest.fixture
def operator(cluster: LocalCluster, tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, cluster) as found:
        yield found


def put(cluster: LocalCluster, rows: dict[bytes, bytes], live: int = 3) -> None:
    """Wait until all replicas of all partitions are in sync, then put the rows."""
    with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="flights") as client:
        wait_settled(control, live)
        client.put_many(rows)


def rows(cluster: LocalCluster, live: int = 3) -> dict[bytes, bytes]:
    with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="flights") as client:
        wait_settled(control, live)
        return client.get_many([*BEFORE, *AFTER])


def beside(cluster: LocalCluster, pattern: str) -> list[list[str]]:
    """For each node, return the names of the files in its folder that match the pattern."""
    return [sorted(path.name for path in cluster.node(name).directory.glob(pattern)) for name in NODES]


def test_an_installation_keeps_the_configuration(tmp_path: Path) -> None:
    """An installation over an older one keeps the configuration. The test installs into its own folder instead of the
    system's folders. Scripts stand in for the commands that need root.
    """
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "usr/lib/sysusers.d").mkdir(parents=True)
    (tmp_path / "usr/lib/tmpfiles.d").mkdir(parents=True)
    text = block(INSTALL)
    for path in ("/opt", "/etc", "/usr"):
        text = text.replace(f" {path}/", f" {tmp_path}{path}/").replace(f"\n{path}/", f"\n{tmp_path}{path}/")
    with machine(tmp_path) as operator:
        for name in ("systemd-sysusers", "systemd-tmpfiles", "systemctl", "pip", "minkad"):
            operator.stand_in(name, f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n')
        operator.stand_in(
            "python3", f'#!/bin/sh\nmkdir -p "$3/bin" && cp {tmp_path}/bin/pip {tmp_path}/bin/minkad "$3/bin"\n'
        )
        first = operator.type(text.replace("$EDITOR", "echo '# mine' >>"))
        again = operator.type(text.replace("$EDITOR", "true"))
    assert (first.status, again.status) == (0, 0), (first, again)
    assert (tmp_path / "etc/minka/minkad.yaml").read_text("utf-8").endswith("# mine\n")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 2 * 6
    assert calls[:6] == calls[6:]


def test_certificates_are_made_once(tmp_path: Path) -> None:
    with machine(tmp_path) as operator:
        made: dict[Path, bytes] = {}
        for text in (block(AUTHORITY), block(CERTIFICATE)):
            first = operator.type(text)
            assert first.status == 0, first
            files = {path: path.read_bytes() for path in tmp_path.glob("*/*.*")}
            again = operator.type(text)
            assert again.status != 0
            assert "File exists" in again.stderr
            assert {path: path.read_bytes() for path in tmp_path.glob("*/*.*")} == files
            made |= files
        assert {path.name for path in made} == {"ca.key", "ca.pem", "athens.key", "athens.csr", "athens.pem"}
        for name in ("old-ca.pem", "new-ca.pem", "me.pem"):
            (tmp_path / name).write_bytes((tmp_path / "authority/ca.pem").read_bytes())
        for _ in range(2):
            assert operator.type("cat old-ca.pem new-ca.pem > ca.pem").status == 0
            assert (tmp_path / "ca.pem").read_text().count("BEGIN CERTIFICATE") == 2
            assert operator.type("openssl x509 -noout -checkend 2592000 -in me.pem").status == 0


def test_backups_and_restores(cluster: LocalCluster, operator: Machine, tmp_path: Path) -> None:
    a_backup_that_fails_has_no_name(cluster, operator, tmp_path)
    backups_and_restores_can_be_repeated(cluster, operator)
    a_restore_that_fails_can_be_typed_again(cluster, operator)


def backups_and_restores_can_be_repeated(cluster: LocalCluster, operator: Machine) -> None:
    made = []
    for count in (1, 2):
        ended = operator.type(block(BACKUP))
        assert ended.status == 0, ended
        made.append(ended.stdout.split()[0])
        assert beside(cluster, "backup/*") == [sorted(Path(one).name for one in made)] * 3
        assert rows(cluster) == BEFORE, f"after backup {count}"
    restore = block(RESTORE).replace("20261126T200000Z", Path(made[0]).name)
    for count in (1, 2):
        put(cluster, AFTER)
        ended = operator.type(restore)
        # bash has also run the lines that were pasted after the restore. The last line asks the restarted cluster for
        # its status; at first, the answer may be an error.
        assert "restored; " in ended.stdout, ended
        assert ended.stdout.count("\n") > 1 or ended.stderr, ended
        assert rows(cluster) == BEFORE, f"after restore {count}"
        assert [len(one) for one in beside(cluster, "data.before-*")] == [count] * 3
    assert beside(cluster, "data.new-*") == [[], [], []]


def a_backup_that_fails_has_no_name(cluster: LocalCluster, operator: Machine, tmp_path: Path) -> None:
    operator.stand_in("date", f"#!/bin/sh\necho >> {tmp_path}/dates; wc -l < {tmp_path}/dates\n")  # always a new date
    for fails in ("cp", "mv", "sync"):
        operator.stand_in(fails, f'#!/bin/sh\n[ "$NODE" != cyrene ] || exit 1\n{_REAL.format(fails)}')
        ended = operator.type(block(BACKUP))
        assert ended.status != 0
        assert "NO BACKUP" in ended.stderr
        assert [name for name in beside(cluster, "backup/*")[2] if not name.endswith(".part")] == []
        assert not any(cluster.node(name).running for name in NODES)
        operator.stand_in(fails, "")
    ended = operator.type(block(BACKUP))
    assert ended.status == 0, ended
    assert all(Path(ended.stdout.split()[0]).name in names for names in beside(cluster, "backup/*"))
    assert rows(cluster) == BEFORE
    operator.stand_in("date", "")
    for name in NODES:
        for path in cluster.node(name).directory.glob("backup/*"):
            shutil.rmtree(path)


def _fails_before_a_stop(cluster: LocalCluster, operator: Machine, text: str) -> str:
    """Type a restore that fails. Checks that it has stopped no node, and has left no folder. Returns its stderr."""
    ended = operator.type(text)
    assert "nothing has changed: no node was stopped" in ended.stderr, ended
    assert all(cluster.node(name).running for name in NODES)
    assert beside(cluster, "data.new-*") == [[], [], []]
    return ended.stderr


def a_restore_that_fails_can_be_typed_again(cluster: LocalCluster, operator: Machine) -> None:
    (before,) = {len(one) for one in beside(cluster, "data.before-*")}
    made = operator.type(block(BACKUP)).stdout.split()[0]
    put(cluster, AFTER)
    text = block(RESTORE)
    assert "byzantium: there is no " in _fails_before_a_stop(cluster, operator, text.replace("-- athens", "--"))
    text = text.replace("20261126T200000Z", Path(made).name)
    for name, script, reason in (
        ("df", "echo Avail; echo 10; exit 0", "cyrene: /var/lib has no room for a copy"),
        ("mountpoint", "exit 0", "cyrene: a file system is mounted on"),
        ("cp", 'mkdir -p "$3" && echo full >&2; exit 1', "full"),
        ("sync", "echo no disk >&2; exit 1", "no disk"),
    ):
        operator.stand_in(name, f'#!/bin/sh\n[ "$NODE" != cyrene ] || {{ {script}; }}\n{_REAL.format(name)}')
        assert reason in _fails_before_a_stop(cluster, operator, text)
        operator.stand_in(name, "")
    assert rows(cluster) == BEFORE | AFTER
    # Let the second `mv` on byzantium fail. byzantium is the second node, so athens already has its restored data.
    operator.stand_in(
        "mv", '#!/bin/sh\n[ "$NODE" != byzantium ] || case "$2" in *.new-*) exit 1 ;; esac\nexec /bin/mv "$@"\n'
    )
    ended = operator.type(text)
    assert "NOT RESTORED: start no node by hand" in ended.stderr
    assert not any(cluster.node(name).running for name in NODES)
    operator.stand_in("mv", "")
    ended = operator.type(text)
    assert "restored; " in ended.stdout
    assert rows(cluster) == BEFORE
    assert [len(one) - before for one in beside(cluster, "data.before-*")] == [2, 1, 1]


def test_restarts_node_by_node(cluster: LocalCluster, operator: Machine) -> None:
    for _ in range(2):
        processes = [cluster.node(name).pid for name in NODES]
        ended = operator.type(block(RESTART))
        assert ended.status == 0, ended
        assert not set(processes) & {cluster.node(name).pid for name in NODES}
        assert rows(cluster) == BEFORE
    for command in ("systemctl reload minkad", "systemctl restart minkad"):
        assert [operator.type(command).status for _ in range(2)] == [0, 0]
        assert rows(cluster) == BEFORE
    assert [operator.type("systemctl stop minkad").status for _ in range(2)] == [0, 0]
    assert operator.type("systemctl start minkad").status == 0
    assert rows(cluster) == BEFORE


def test_a_node_begins_again(cluster: LocalCluster, operator: Machine) -> None:
    cluster.add("ephesus")
    cluster.kill("cyrene")
    (cluster.node("cyrene").data_dir / "identity.json").unlink()
    cluster.node("cyrene").config = {"cluster": {"join": [cluster.node("athens").address]}}
    for _ in range(2):
        ended = operator.type("minkactl drain cyrene --decommission")
        assert ended.status == 0, ended
    ended = operator.type(block(REBUILD))
    assert ended.status == 0, ended
    assert rows(cluster, live=4) == BEFORE
    again = operator.type(block(REBUILD))
    assert again.status != 0
    assert "NODE_IN_USE" in again.stderr
    assert [len(one) for one in beside(cluster, "data.old-*")] == [0, 0, 1]
    with Control(cluster.endpoints) as control:
        eventually("three voters", lambda: len(control.status().coordinator.voters) == 3)
        if "cyrene" in control.status().coordinator.voters:  # cyrene came back before another node got its seat
            ended = operator.type("minkactl raft promote ephesus --instead-of cyrene")
            assert ended.status == 0, ended
    promote = "minkactl raft promote cyrene --instead-of VOTER".replace("VOTER", "byzantium")
    for _ in range(2):
        eventually("cyrene is a voter", lambda: operator.type(promote).status == 0)
    assert rows(cluster, live=4) == BEFORE


def test_a_node_is_removed(cluster: LocalCluster, operator: Machine) -> None:
    cluster.add("ephesus")
    cluster.kill("cyrene")
    assert operator.type("minkactl drain cyrene --decommission").status == 0
    first, again = (operator.type("minkactl raft remove cyrene") for _ in range(2))
    assert first.status == 0, first
    assert (again.status != 0, "UNKNOWN_NODE" in again.stderr) == (True, True)
    assert rows(cluster, live=3) == BEFORE
    # Empty a node. With three nodes, the cluster refuses this: each partition has three replicas. With four nodes it
    # works, even twice.
    refused = operator.type("minkactl drain athens --decommission")
    assert refused.status != 0
    cluster.add("delphi")
    for _ in range(2):
        ended = operator.type("minkactl drain athens --decommission")
        assert ended.status == 0, ended
    assert rows(cluster, live=3) == BEFORE  # athens is drained, and not LIVE


def test_commands_that_only_look_and_unreachable_machines(cluster: LocalCluster, operator: Machine) -> None:
    what_only_looks(cluster, operator)
    a_command_is_never_answered_by_silence(cluster, operator)


def what_only_looks(cluster: LocalCluster, operator: Machine) -> None:
    rows(cluster)
    commands = [*sorted(INLINE_LOOKS), *(command for look in LOOKS for command in shown(block(look)))]
    for command in commands:
        ended = operator.type(command)
        assert ended.status == 0, (command, ended)
    (create,) = shown(block(CREATE))
    refused = operator.type(create)
    assert refused.status != 0
    assert "KEYSPACE_EXISTS" in refused.stderr
    created = operator.type(create.replace("flights", "trains"))
    assert created.status == 0, created
    file = cluster.node("athens").config_path
    for _ in range(2):
        checked = operator.type(f"minkad --config {file} --validate-config")
        assert checked.status == 0, checked
    assert rows(cluster) == BEFORE


def a_command_is_never_answered_by_silence(cluster: LocalCluster, operator: Machine) -> None:
    """If the operator can't reach a machine, a runbook reports this, and ends before it has changed anything."""
    operator.stand_in("ssh", '#!/bin/sh\necho "ssh: connect to host $1: No route to host" >&2\nexit 255\n')
    for text in (block(BACKUP), block(RESTORE), block(RESTART)):
        ended = operator.type(text)
        assert "No route to host" in ended.stderr
        assert all(cluster.node(name).running for name in NODES)
    with Control(cluster.endpoints) as control:
        eventually("athens leads again", lambda: _undrained(control))
    assert rows(cluster) == BEFORE


def _undrained(control: Control) -> bool:
    try:
        control.undrain("athens")
    except MinkaError:
        return False
    return True
