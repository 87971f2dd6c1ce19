"""The shell loop of docs/operations.md that restarts nodes one by one. Scripts stand in for the commands in it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
# Stands in for a command: it appends its name and arguments to the file `calls`. If the first argument names a file, it
# also runs this file as a shell script. So a test can write the answer of `minkactl nodes` into the file `nodes`.
COMMAND = """#!/bin/sh
echo "${0##*/} $*" >> calls
[ ! -f "$1" ] || . "./$1"
"""


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    """A folder with stand-ins for the commands that the loop runs."""
    for name in ("minkactl", "ssh", "sleep"):
        (tmp_path / name).write_text(COMMAND)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def restarted(folder: Path) -> tuple[int, list[str], str]:
    """Run the loop. Returns its exit status, the commands that it ran, and its stderr."""
    section = DOCUMENT.read_text("utf-8").partition("## Restart node by node\n\n")[2]
    script = "\n".join(re.findall(r"^    (.*)$", section.partition("\n\n")[0], re.MULTILINE))
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    ended = subprocess.run(
        ["sh", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    return ended.returncode, (folder / "calls").read_text().splitlines(), ended.stderr


def test_all_nodes_are_restarted_and_then_leaders_elected(loop: Path) -> None:
    status, calls, _ = restarted(loop)
    looks = ["minkactl nodes -o name", "minkactl partitions --under-replicated -o name"]
    expected = []
    for node in ("athens", "byzantium", "cyrene"):
        expected += [f"minkactl drain {node}", f"ssh -n {node} systemctl restart minkad", *looks]
    assert (status, calls) == (0, [*expected, "minkactl elect-leaders --preferred"])


@pytest.mark.parametrize("answer", ["exit 5", "exit 3", "echo flights/1"])
def test_the_loop_waits_until_all_replicas_are_known_to_be_in_sync(loop: Path, answer: str) -> None:
    (loop / "partitions").write_text(f"[ -f told ] || {{ touch told; {answer}; }}\n")
    status, calls, _ = restarted(loop)
    assert (status, calls.count("sleep 1")) == (0, 1)
    assert calls.index("sleep 1") < calls.index("minkactl drain byzantium")


def test_a_drain_that_is_held_up_ends_it(loop: Path) -> None:
    (loop / "drain").write_text("[ $2 != byzantium ]\n")
    status, calls, said = restarted(loop)
    assert (status, calls[-1]) == (1, "minkactl drain byzantium")
    assert "minkactl undrain byzantium" in said
