"""Describes the machine: its versions, its load, and the processor time that a shared host really gives it."""

import contextlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Final

import minka

_SPIN_S: Final = 0.2
_SPIN: Final = f"""
import time
end = time.perf_counter() + {_SPIN_S}
rounds = 0
while time.perf_counter() < end:
    rounds += sum(range(1000)) > 0
print(rounds)
"""


def load() -> float:
    """The average number of processes that wanted a processor in the last minute."""
    return os.getloadavg()[0]


def machine() -> str:
    """Describe the processors and versions in one line."""
    cpu = platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    versions = f"Python {platform.python_version()}, Linux {platform.release()}, minka {minka.__version__}"
    return f"{os.cpu_count()} x {cpu}, {versions}"


def usable_processors() -> float:
    """Measure the speed-up of one process on each processor, compared with a single process.

    The result is less than the number of processors while other work runs. On a virtual machine, it is also less while
    the host gives the processors to other machines; the load average doesn't show this.
    """
    alone, together = _spin(1), _spin(os.cpu_count() or 1)
    return sum(together) / max(*alone, *together)


def _spin(processes: int) -> list[int]:
    """Run `processes` processes at the same time; returns the amount of work that each has done."""
    command = [sys.executable, "-I", "-S", "-c", _SPIN]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return [int(process.communicate()[0]) for process in running]
