"""Finds the commands in docs/operations.md, and runs them as if an operator typed them on a machine of the cluster.

A `LocalCluster` replaces the machines that a test can't have, and scripts stand in for two commands. `ssh NODE` runs
its command on this machine, but with the node's folders instead of /var/lib/minka and /backup. `systemctl` starts,
stops and signals the cluster's processes as systemd does; `systemctl start` returns when the node listens. All other
commands (`cp`, `mv`, `mkdir`, `openssl`, `curl`, `minkactl`) are the real ones.
"""

import os
import re
import shlex
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from minka.testing.local_cluster import LocalCluster
from tests import minkactl_forks
from tests.cluster.cluster import eventually

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = ROOT / "docs" / "operations.md"
_SPAN: Final = re.compile(r"`([^`]+)`")
_COMMANDS: Final = (
    *("minkactl", "minkad", "systemctl", "systemd-analyze", "journalctl", "ssh", "cp", "mv", "rm", "cat", "kill"),
    *("chmod", "chown", "openssl", "curl", "mkdir", "python3", "pip"),
)

_SSH: Final = """#!/bin/sh
# ssh [-n] NODE COMMAND...: run the command in a shell with the node's folders. Without -n, read all of stdin like the
# real ssh: that takes the lines that were typed after the command.
if [ "$1" = -n ]; then shift; else cat >/dev/null; fi
export NODE="$1"; shift
command=$(printf '%s\\n' "$*" | sed -e "s#/var/lib/minka#$CLUSTER/$NODE/data#g" -e "s#/backup#$CLUSTER/$NODE/backup#g")
exec sh -c "$command" </dev/null
"""
_SYSTEMCTL: Final = """#!{python}
import os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect(os.environ["SYSTEMD"])
    asked.sendall((" ".join([os.environ["NODE"], *sys.argv[1:]]) + "\\n").encode())
    answer = asked.makefile().read()
sys.stderr.write(answer)
sys.exit(1 if answer else 0)
"""
# Stands in for minkactl. It adds --yes to the commands of the `case`, which would otherwise ask a question.
_MINKACTL: Final = """#!/bin/sh
case "$*" in "node rebuild"* | "raft remove"* | "raft promote"* | *--decommission) set -- "$@" --yes ;; esac
exec {python} -I -S {forks} {server} "$@"
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit status of a command that has ended, and its output."""

    status: int
    stdout: str
    stderr: str


class Machine:
    """The operator's machine: a folder with the scripts that stand in for commands, and the cluster that they reach."""

    def __init__(self, folder: Path, cluster: LocalCluster | None, environment: dict[str, str]) -> None:
        self.folder: Final = folder
        self._cluster: Final = cluster
        self._environment: Final = environment

    def type(self, text: str) -> Ended:
        """Paste the text into bash, and return the result. As in a terminal, a command that reads its stdin gets the
        lines that were pasted after this command.
        """
        if self._cluster is not None:
            text = text.replace("localhost:7401", self._cluster.node("athens").http_address)
        ended = subprocess.run(
            ["bash"],
            cwd=self.folder,
            env=self._environment,
            input=f"{text}\n",
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def stand_in(self, name: str, script: str) -> None:
        """Let a script stand in for the machine's command of this name; an empty script removes the stand-in."""
        path = self.folder / "bin" / name
        if script:
            path.write_text(script)
            path.chmod(0o755)
        else:
            path.unlink()


@contextmanager
def machine(folder: Path, cluster: LocalCluster | None = None) -> Iterator[Machine]:
    """Make a machine from which an operator can reach the cluster. Without a cluster, no scripts stand in for `ssh` and
    `systemctl`.
    """
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "NODE": "athens"}
    found = Machine(folder, cluster, environment)
    found.stand_in(
        "minkactl",
        _MINKACTL.format(python=sys.executable, forks=minkactl_forks.__file__, server=minkactl_forks.server()),
    )
    found.stand_in("minkad", f'#!/bin/sh\nexec {sys.executable} -m minkad "$@"\n')
    if cluster is None:
        yield found
        return
    for node in cluster.nodes.values():
        (node.directory / "backup").mkdir(exist_ok=True)
    systemd = folder / "systemd"
    environment |= {"MINKA_ENDPOINTS": ",".join(cluster.endpoints), "CLUSTER": str(cluster.directory)}
    environment |= {"SYSTEMD": str(systemd), "PYTHONPATH": str(ROOT)}
    found.stand_in("ssh", _SSH)
    found.stand_in("systemctl", _SYSTEMCTL.format(python=sys.executable))

    running = cluster

    class Systemd(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            node, *words = self.rfile.readline().decode().split()
            try:
                _systemctl(running, node, words)
            except Exception as error:  # noqa: BLE001 - the stand-in prints it
                self.wfile.write(f"{error}\n".encode())

    with socketserver.ThreadingUnixStreamServer(str(systemd), Systemd) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def _systemctl(cluster: LocalCluster, node: str, words: list[str]) -> None:
    verb, unit = words[0], words[-1]
    assert unit == "minkad", words
    is_running = cluster.node(node).running
    if verb in ("stop", "restart") and is_running:
        cluster.terminate(node)
    if verb == "restart" or (verb == "start" and not is_running):
        cluster.restart(node, ready=False)
        wait_listening(cluster, node)
    if verb == "reload":
        cluster.signal(node, signal.SIGHUP)
    assert verb in ("start", "stop", "restart", "reload", "status"), words


def wait_listening(cluster: LocalCluster, name: str) -> None:
    """Wait until the node listens, as `systemctl start` waits for READY=1. If the node ends before that, the error
    contains the last lines of its log.
    """
    node = cluster.node(name)
    host, _, port = node.address.rpartition(":")

    def probe() -> bool:
        if not node.running:
            raise AssertionError(f"{name} {node.ended()}; its log ends with:\n{node.log.read_text('utf-8')[-2000:]}")
        with socket.socket() as asking:
            return asking.connect_ex((host, int(port))) == 0

    eventually(f"{name} listens", probe)


def blocks() -> list[str]:
    """Return the indented blocks of the document, without their indentation."""
    found: list[str] = []
    lines: list[str] = []
    before = ""
    for line in [*DOCUMENT.read_text("utf-8").splitlines(), ""]:
        if line.startswith("    ") and (lines or not before):
            lines.append(line)
            continue
        if lines:
            indent = min(len(one) - len(one.lstrip()) for one in lines)
            found.append("\n".join(one[indent:] for one in lines))
            lines = []
        before = line
    return found


def block(beginning: str) -> str:
    """Return the block that begins with this text."""
    (found,) = [one for one in blocks() if one.startswith(beginning)]
    return found


def inline() -> set[str]:
    """Return the commands that are in backquotes within sentences."""
    text = re.sub(r"^    .*$", "", DOCUMENT.read_text("utf-8"), flags=re.MULTILINE)
    spans = {" ".join(span.split()) for span in _SPAN.findall(text)}
    return {span for span in spans if " " in span and span.split()[0] in _COMMANDS}


def shown(block: str) -> list[str]:
    """Return the commands of a block that shows a terminal: the lines after its prompts, without comments."""
    return [shlex.join(shlex.split(line[2:], comments=True)) for line in block.splitlines() if line.startswith("$ ")]
