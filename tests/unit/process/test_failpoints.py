"""Failpoints do nothing unless MINKA_FAILPOINTS_FILE is set. If it is, they do what the file says. Each test runs them
in a new process.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio
from minkad.process.failpoints import failpoint, names

def plain(): print("plain", flush=True)
marked = failpoint("test.step")(plain)
print("same" if marked is plain else "wrapped", names(), flush=True)

@failpoint("test.async")
async def step(): print("async", flush=True)

try:
    marked()
    asyncio.run(step())
except Exception as error:
    print(error)
"""


def run(file: Path | None, lines: str = "") -> subprocess.CompletedProcess[str]:
    """Run the script in a process, with these lines in the file of failpoints."""
    env = {key: value for key, value in os.environ.items() if key != "MINKA_FAILPOINTS_FILE"}
    if file is not None:
        file.write_text(lines)
        env["MINKA_FAILPOINTS_FILE"] = str(file)
    return subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False)


def test_without_the_variable_a_failpoint_costs_nothing() -> None:
    """The decorator `failpoint` returns the unchanged function."""
    assert run(None).stdout.splitlines() == ["same ['test.step']", "plain", "async"]


@pytest.mark.parametrize(
    ("lines", "output", "status"),
    [
        ("", ["plain", "async"], 0),
        ("other.before=kill", ["plain", "async"], 0),
        ("test.step.before=kill", [], -signal.SIGKILL),
        ("test.step.after=kill", ["plain"], -signal.SIGKILL),
        ("test.async.before=kill", ["plain"], -signal.SIGKILL),
        ("test.async.after=kill", ["plain", "async"], -signal.SIGKILL),
        ("test.step.before=error", ["INTERNAL: failpoint test.step.before"], 0),
        ("test.step.before=pause:not-there", ["plain", "async"], 0),
    ],
)
def test_the_actions_of_failpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, output: list[str], status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(tmp_path / "failpoints", lines)
    assert (done.stdout.splitlines(), done.returncode) == (["wrapped ['test.step']", *output], status), done.stderr
