"""Starts nodes from another process, the launcher. After its first node, the launcher imports minkad, and each further
node is a fork of the launcher, so it starts in a tenth of the time. Nodes end when this process ends, even if it is
killed.
"""

import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Lock
from typing import Any, Final, NoReturn
from weakref import finalize

from minka.errors import Code, MinkaError

_LAUNCHERS: Final = 3  # several, so that nodes have different seeds for the hashes of strings, as real nodes have
# Prefixes of variables that have an effect only when a process begins, or when minkad is imported.
_EARLY: Final = ("LD_", "PYTHON", "MALLOC_")
_FAILPOINTS: Final = "MINKA_FAILPOINTS_FILE"  # failpoints need this variable, with any value, when minkad is imported
# Nodes don't get these variables: they come from the service manager of the process that starts the cluster, and are
# meant only for that process.
_NOT_INHERITED: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID")
_STATE_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.001
_PR_SET_PDEATHSIG: Final = 1
_CLONE_NEWNET: Final = 0x40000000
_launchers: "Final[dict[tuple[int, int, bool], Launcher]]" = {}


@dataclass(frozen=True, slots=True)
class Start:
    """The data with which the launcher starts a node. With `own_session` the node gets as much processor time as each
    other session: Linux divides processors among sessions first.
    """

    config: Path
    log: Path
    env: dict[str, str]
    own_session: bool
    network: Path | None  # the file of its network namespace; None: the namespace of this process


class NodeProcess:
    """The process of a node, with some methods of `subprocess.Popen`. Several threads may use it."""

    def __init__(self, pid: int, launcher: "Launcher") -> None:
        self.pid: Final = pid
        self.returncode: int | None = None
        self._launcher: Final = launcher
        self._ended: Final = os.pidfd_open(pid)  # readable once the process has ended
        self._lock: Final = Lock()

    def __del__(self) -> None:
        os.close(self._ended)

    def poll(self) -> int | None:
        """The exit status of the process, or the negative number of the signal that ended it; None while it runs."""
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"minkad with pid {self.pid}", timeout or 0)
        return status

    def send_signal(self, number: signal.Signals) -> bool:
        """Send a signal if the process runs; after SIGSTOP, wait until all its threads have stopped. Returns False if
        the process had ended before.
        """
        with self._lock:
            if self.returncode is not None:
                return False
            os.kill(self.pid, number)
            return number != signal.SIGSTOP or bool(self._launcher.ask("stopped", self.pid))

    def _status(self, timeout: float | None) -> int | None:
        if self.returncode is None and wait([self._ended], timeout):
            with self._lock:
                if self.returncode is None:
                    try:
                        self.returncode = self._launcher.ask("status", self.pid)
                    except MinkaError:
                        if not self._launcher.has_ended:
                            raise
                        self.returncode = -signal.SIGKILL  # nodes end with their launcher
        return self.returncode


class Launcher:
    """A launcher's process, and the connection to it from the process that runs the cluster."""

    def __init__(self, *, failpoints: bool) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._env: Final = {k: v for k, v in os.environ.items() if k != _FAILPOINTS}
            if failpoints:
                self._env[_FAILPOINTS] = os.devnull
            process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"],
                stdin=subprocess.DEVNULL,
                env=self._env,
                pass_fds=[theirs.fileno()],
                process_group=0,  # a Ctrl-C is meant for the process that runs the cluster
            )
        self._connection: Final = Connection(ours.detach())
        self._lock: Final = Lock()
        finalize(self, _end, self._connection, process)

    def start(self, node: Start) -> NodeProcess:
        """Start a node."""
        node.log.touch()
        may_fork = _early(node.env) == _early(self._env)
        return NodeProcess(self.ask("start", node, may_fork), self)

    @property
    def has_ended(self) -> bool:
        """True if the process no longer answers."""
        return self._connection.closed

    def forget(self) -> None:
        """Close this process's copy of the connection."""
        self._connection.close()

    def ask(self, *request: Any) -> Any:
        """Send a request to the launcher's process, and return its answer. Raises MinkaError(PLAYGROUND_FAILED)."""
        with self._lock:
            try:
                self._connection.send(request)
                answer = self._connection.recv()
            except (EOFError, OSError) as error:
                self._connection.close()
                raise MinkaError(Code.PLAYGROUND_FAILED, "the process that starts the nodes has ended") from error
            except BaseException:
                # Close the connection, since the next request would get the answer to this request.
                self._connection.close()
                raise
        if isinstance(answer, Exception):
            raise MinkaError(Code.PLAYGROUND_FAILED, f"the process that starts the nodes: {answer!r}") from answer
        return answer


def _end(connection: Connection, process: "subprocess.Popen[bytes]") -> None:
    connection.close()
    process.wait()


def launcher(index: int, env: dict[str, str]) -> Launcher:
    """The launcher for a node with this index in its cluster, and with this environment. All clusters of this process
    share the launchers.
    """
    key = (os.getpid(), index % _LAUNCHERS, _FAILPOINTS in env)
    if key not in _launchers or _launchers[key].has_ended:
        _launchers[key] = Launcher(failpoints=_FAILPOINTS in env)
    return _launchers[key]


def _forget() -> None:
    """Close a fork's copies of the connections: the launchers must end with the process that started them."""
    for one in _launchers.values():
        one.forget()
    _launchers.clear()


os.register_at_fork(after_in_child=_forget)


def inherited() -> dict[str, str]:
    """The environment variables of this process that its nodes get."""
    return {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED and not k.startswith("MINKAD_")}


def enter_network(namespace: Path) -> None:
    """Put the calling thread into the network namespace of this file. Raises OSError."""
    file, libc = os.open(namespace, os.O_RDONLY), ctypes.CDLL(None, use_errno=True)
    try:
        if libc.setns(file, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(namespace))
    finally:
        os.close(file)


def _early(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_EARLY)}


# In the launcher's process


def serve(descriptor: int) -> None:
    """Answer requests until their sender is gone. If a request fails, this answers with the error and goes on: if the
    launcher ended, all nodes would end. In the process of a forked node, this function ends with SystemExit.
    """
    connection, starts = Connection(descriptor), 0
    while True:
        try:
            request = connection.recv()
        except (EOFError, OSError):
            return
        answer: Any = None
        match request:
            case ("start", node, may_fork):
                starts += 1
                in_place = may_fork and starts > 1
                pid = _or_error(_fork, in_place)
                if pid == 0:
                    connection.close()
                    _become(node, in_place=in_place)
                answer = pid
            case ("status", pid):
                answer = _or_error(_status, pid)
            case ("stopped", pid):
                answer = _or_error(_has_stopped, pid)
        try:
            connection.send(answer)
        except OSError:
            return  # the sender has ended meanwhile


def _or_error(work: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return work(argument)
    except (ImportError, OSError) as error:
        return error


def _status(pid: int) -> int:
    _reached(pid, os.WEXITED)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _has_stopped(pid: int) -> bool:
    """Wait until SIGSTOP has stopped the process (returns True) or the process has ended (returns False)."""
    return _reached(pid, os.WSTOPPED | os.WEXITED) == os.CLD_STOPPED


def _reached(pid: int, states: int) -> int:
    """Wait until the process is in one of these states, and return the state. Linux keeps the event, so this also finds
    a state that was reported before. Raises TimeoutError after 10 s, since all other requests wait meanwhile.
    """
    deadline = time.monotonic() + _STATE_TIMEOUT_S
    while (event := os.waitid(os.P_PID, pid, states | os.WNOHANG | os.WNOWAIT)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} has neither stopped nor ended within {_STATE_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)
    return event.si_code


def _fork(preloaded: bool) -> int:
    if preloaded:
        import_module("minkad.node.daemon")
        gc.collect()
        gc.freeze()  # a collection would write to all objects, and so to the memory pages that nodes share
    launcher_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher_pid:
            sys.exit(1)
    return pid


def _become(node: Start, *, in_place: bool) -> NoReturn:
    os.setsid() if node.own_session else os.setpgid(0, 0)
    try:
        log = os.open(node.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except FileNotFoundError:  # the cluster was stopped meanwhile, and its directory is gone
        sys.exit(1)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if node.network is not None:
        enter_network(node.network)
    arguments = ["--config", str(node.config)]
    if not in_place:
        os.execve(sys.executable, [sys.executable, "-m", "minkad", *arguments], node.env)
    os.environ.clear()
    os.environ.update(node.env)
    sys.exit(import_module("minkad.__main__").main(arguments))
