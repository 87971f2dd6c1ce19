"""Starts processes, which end when the benchmark ends or earlier, and finds ports and folders for them."""

import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from minka.testing.leftovers import Leftovers
from minka.testing.loopback_ports import is_used

PORTS: Final = range(10_000, 20_000)  # so the ports of Redis's bus, 10,000 higher, are below the ephemeral range
STOP_TIMEOUT_S: Final = 10.0


class Group:
    """Processes, and the folder to which they write. The processes end and the folder is removed at the end of the
    block, or when this process is killed.
    """

    def __init__(self, name: str) -> None:
        self.directory: Final = Path(tempfile.mkdtemp(prefix=f"minka-bench-{name}-"))
        self._leftovers = Leftovers([self.directory])
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in self._processes:
            process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._leftovers.remove()

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process that writes its output to the file NAME.log."""
        with (self.directory / f"{name}.log").open("ab") as log:
            return self._popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start_talking(self, name: str, command: Sequence[str]) -> "Talk":
        """Start a process that reads and writes lines of JSON, with stderr in NAME.log."""
        with (self.directory / f"{name}.log").open("ab") as log:
            return Talk(self, self._popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log))

    def _popen(self, command: Sequence[str], **files: Any) -> subprocess.Popen[bytes]:
        # setpriv lets the kernel kill the process when this process ends, for any reason.
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *command], **files)
        self._processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process with SIGKILL, and wait for its end. From then on, it doesn't count as a process that
        failed.
        """
        self._processes.remove(process)
        process.kill()
        process.wait()

    def failed(self) -> RuntimeError:
        """Return the error for a process that has ended too early, with the ends of all logs."""
        logs = {path.name: path.read_text("utf-8", "replace")[-1000:] for path in self.directory.glob("*.log")}
        return RuntimeError(f"a process ended; the logs end with {logs}")

    def wait_until(self, what: str, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Poll a condition. Raises RuntimeError if a process ends, TimeoutError if the condition stays false."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if any(process.poll() is not None for process in self._processes):
                raise self.failed()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout_s:g} s: {what}")
            time.sleep(0.02)


class Talk:
    """Exchanges lines of JSON with a process."""

    def __init__(self, group: Group, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None, "it was started with pipes"
        assert process.stdout is not None, "it was started with pipes"
        self.process: Final = process
        self._group = group
        self._in, self._out = process.stdin, process.stdout

    def say(self, line: Any) -> None:
        """Write one line. Raises RuntimeError if the process has ended."""
        try:
            self._in.write(json.dumps(line).encode() + b"\n")
            self._in.flush()
        except BrokenPipeError as error:
            raise self._group.failed() from error

    def hear(self) -> Any:
        """Wait for one line; returns its content. Raises RuntimeError if the process has ended."""
        line = self._out.readline()
        if not line:
            raise self._group.failed()
        return json.loads(line)


def answer(line: Any) -> None:
    """Write a line to the process that started this one; it reads the line with `Talk.hear`."""
    # An unbuffered sys.stdout (PYTHONUNBUFFERED) loses the end of a long line.
    with open(1, "wb", closefd=False) as out:
        out.write(json.dumps(line).encode() + b"\n")


def free_ports(count: int, above: int = 0) -> list[int]:
    """Find `count` loopback ports. Nobody listens on them now, or on the ports that are higher by `above`."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, 1000):
        if not any(is_used(number) for number in {port, port + above}):
            found.append(port)
            if len(found) == count:
                return found
    raise RuntimeError(f"no {count} free ports from {PORTS.start} on")
