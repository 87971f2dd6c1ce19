"""Runs `minkactl` in new processes, in a tenth of the time of a normal start: a server that has imported `minkactl`
forks itself for each run. Each run has its own arguments, environment, folder and standard streams; if the streams are
a terminal, it also has this terminal.

As a program, this module is a `minkactl` for shells: `python -I -S minkactl_forks.py SOCKET ARGUMENTS...`.
"""

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NoReturn

_REQUEST_BYTES = 1 << 17


class Forked:
    """A run of `minkactl` in a process that the server has forked."""

    def __init__(self, server: str, arguments: Sequence[str], env: Mapping[str, str], streams: Sequence[int]) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(server)
        request = json.dumps([*map(list, (arguments, env.items())), os.getcwd()]).encode()
        socket.send_fds(self._connection, [request], streams)
        self.pid = int(self._connection.recv(100))

    def wait(self) -> int:
        """Wait until the process ends. Returns its exit status, or the negative number of the signal that ended it."""
        with self._connection:
            return int(self._connection.recv(100))


def server() -> str:
    """Start this process's server, unless it runs already; returns its socket. The server ends with this process."""
    return _server(os.getpid())


@cache
def _server(pid: int) -> str:  # `pid` is the cache's key, so a forked process starts its own server
    import atexit
    import subprocess
    import tempfile

    path = os.path.join(tempfile.mkdtemp(prefix="minkactl-"), "socket")
    command = [sys.executable, "-c", f"from {__name__} import serve; serve({path!r})"]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert started.stdout is not None
    with started.stdout as said:
        assert said.readline() == b"ready\n"
    atexit.register(started.communicate)  # closes the server's stdin, so the server ends
    return path


def serve(path: str) -> None:
    """Listen at the socket, and run `minkactl` for each request in a forked process, until stdin ends. In the forked
    process, this function ends with SystemExit.
    """
    import select
    import shutil
    import signal

    _preload()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the server waits for no child, so none becomes a zombie
    os.write(1, b"ready\n")
    while 0 not in select.select([listener.fileno(), 0], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            _run(connection)
        connection.close()
    shutil.rmtree(os.path.dirname(path))


def _preload() -> None:
    import gc
    import pkgutil
    from importlib import import_module

    import minkactl.commands
    import minkactl.render

    found = [(package.__path__, f"{package.__name__}.") for package in (minkactl.commands, minkactl.render)]
    for name in (one.name for path, prefix in found for one in pkgutil.iter_modules(path, prefix)):
        import_module(name)
    for name in ("grpc", "rich.console", "rich.live", "rich.table", "rich.text", "minka.admin.control"):
        import_module(name)
    gc.collect()
    gc.freeze()


def _run(connection: socket.socket) -> None:
    request, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
    pid = os.fork()
    if pid == 0:
        connection.close()
        arguments, env, folder = json.loads(request)
        _become(arguments, dict(env), folder, streams)
    for stream in streams:
        os.close(stream)
    connection.send(b"%d" % pid)
    connection.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _early(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python reads only when it starts."""
    return {name: value for name, value in env.items() if name.startswith(("PYTHON", "LANG", "LC_"))}


def _become(arguments: list[str], env: dict[str, str], folder: str, streams: list[int]) -> NoReturn:
    import fcntl
    import termios
    import time

    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    is_terminal = os.isatty(0)
    if is_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C in this terminal reaches this process
    os.chdir(folder)
    if _early(env) != _early(os.environ):
        os.execve(sys.executable, [sys.executable, "-m", "minkactl", *arguments], env)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as Python does at its start
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.argv[:] = ["minkactl", *arguments]
    from minkactl.__main__ import main

    main()
    sys.exit()


if __name__ == "__main__":
    sys.exit(Forked(sys.argv[1], sys.argv[2:], os.environ, (0, 1, 2)).wait())
