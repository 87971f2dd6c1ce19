"""`minkactl playground`: a LocalCluster in the foreground that takes requests on a Unix socket.

A request and its answer are one line of JSON each: {"command": "kill", "name": "athens"} and
{"text": "…"}, {"rows": […]} or {"code": "…", "error": "…"}.
"""

import json
import os
import selectors
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from minka import running_playground
from minka.errors import Code, MinkaError
from minka.running_playground import Playground
from minka.testing.leftovers import Leftovers
from minka.testing.local_cluster import READY_TIMEOUT_S, LocalCluster, LocalNode
from minkactl.output import note

SOCKET: Final = "control.sock"
MAX_REQUEST_BYTES: Final = 64 * 1024
POLL_S: Final = 0.5
CLIENT_TIMEOUT_S: Final = READY_TIMEOUT_S + 15


class Server:
    """The playground: one cluster, one socket, one thread."""

    def __init__(self, nodes: int, data: Path | None) -> None:
        running = running_playground.read()
        if running is not None:
            raise MinkaError(Code.PLAYGROUND_FAILED, f"one is running already, as process {running.pid}")
        self._home = Path(tempfile.mkdtemp(prefix="minka-playground-"))
        self._leftovers = Leftovers([self._home, running_playground.path()])
        self._keeps_data = data is not None
        self._cluster = LocalCluster(nodes, data or self._home)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._expected: set[str] = set()  # nodes that should be running

    def run(self) -> None:
        """Serve until Ctrl-C, SIGTERM or SIGHUP; afterwards nothing is left."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        try:
            self._open()
            self._serve()
        except KeyboardInterrupt:
            note("\nstopping")
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # the end is bounded; a second Ctrl-C must not cut it short
            self._listener.close()
            self._cluster.stop(graceful=self._keeps_data)
            self._leftovers.remove()

    def _open(self) -> None:
        note(f"starting {', '.join(self._cluster.nodes)}")
        self._cluster.start()
        with _short_path(self._home / SOCKET) as path:
            self._listener.bind(path)
        self._listener.listen()
        self._point()
        for node in self._cluster.nodes.values():
            self._announce(node)
        print(f"export MINKA_ENDPOINTS={','.join(self._cluster.endpoints)}", flush=True)
        note("minkactl finds it automatically; try, in another terminal: minkactl status")
        note("Ctrl-C stops it and removes everything.")

    def _point(self) -> None:
        running_playground.write(Playground(os.getpid(), str(self._home / SOCKET), self._cluster.endpoints))

    def _announce(self, node: LocalNode) -> None:
        self._expected.add(node.name)
        print(f"{node.name:<14} {node.address}  http://{node.http_address}  {node.log}", flush=True)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                if selector.select(POLL_S):
                    connection, _ = self._listener.accept()
                    with connection:
                        self._answer(connection)
                self._notice_deaths()

    def _notice_deaths(self) -> None:
        for name in sorted(self._expected):
            node = self._cluster.nodes[name]
            if not node.running:
                self._expected.discard(name)
                note(f"{name} {node.ended()}; its log: {node.log}")

    def _answer(self, connection: socket.socket) -> None:
        """Take one request and answer it. A bad request, or a caller that leaves early, does no harm."""
        connection.settimeout(5)
        try:
            request = json.loads(connection.makefile("rb").readline(MAX_REQUEST_BYTES))
            try:
                answer = self._do(str(request["command"]), str(request.get("name", "")))
            except MinkaError as error:
                answer = {"code": error.code.name, "error": error.message}
            connection.sendall(json.dumps(answer).encode() + b"\n")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            note(f"a request that was not understood: {error!r}")

    def _do(self, command: str, name: str) -> dict[str, Any]:
        cluster = self._cluster
        match command:
            case "add":
                node = cluster.add(name)
                self._point()
                self._announce(node)
                return {"text": f"{node.name} is ready at {node.address}"}
            case "kill":
                cluster.node(name)
                self._expected.discard(name)
                cluster.kill(name)
                return self._said(f"{name} was killed")
            case "stop":
                cluster.node(name)
                self._expected.discard(name)
                cluster.terminate(name)
                return self._said(f"{name} stopped")
            case "restart":
                cluster.restart(name)
                self._expected.add(name)
                return self._said(f"{name} is ready again at {cluster.nodes[name].address}")
            case "list":
                return {"rows": [self._row(node) for node in cluster.nodes.values()]}
        raise MinkaError(Code.INVALID_ARGUMENT, f"no such request: {command!r:.40}")

    def _said(self, text: str) -> dict[str, Any]:
        note(text)
        return {"text": text}

    def _row(self, node: LocalNode) -> dict[str, Any]:
        return {
            "name": node.name,
            "state": "running" if node.running else "stopped",
            "pid": node.pid if node.running else None,
            "address": node.address,
            "http_address": node.http_address,
            "data_address": node.data_address,
            "log": str(node.log),
        }


@contextmanager
def _short_path(socket_path: Path) -> Iterator[str]:
    """A path to the socket that fits into a Unix socket's address (107 bytes), however long its folder's path is."""
    folder = os.open(socket_path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{socket_path.name}"
    finally:
        os.close(folder)


def ask(command: str, name: str = "") -> dict[str, Any]:
    """Send one request to this user's playground. Raises MinkaError: NO_PLAYGROUND, or the playground's refusal."""
    found = running_playground.read()
    if found is None:
        raise MinkaError(Code.NO_PLAYGROUND, f"none is named by {running_playground.path()}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(CLIENT_TIMEOUT_S)
        try:
            with _short_path(Path(found.socket)) as path:
                connection.connect(path)
            connection.sendall(json.dumps({"command": command, "name": name}).encode() + b"\n")
            line = connection.makefile("rb").readline()
        except OSError as error:
            raise MinkaError(Code.NO_PLAYGROUND, f"process {found.pid} does not answer: {error}") from error
    if not line:
        raise MinkaError(Code.NO_PLAYGROUND, f"process {found.pid} ended before it answered")
    answer: dict[str, Any] = json.loads(line)
    if "code" in answer:
        raise MinkaError(Code[answer["code"]], answer["error"])
    return answer
