"""The demo's story: lines, chapters, and commands as a person would type them."""

import os
import pty
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minkactl import units


def bold(text: str) -> str:
    """The text in bold, if the output is a terminal and NO_COLOR isn't set."""
    plain = "NO_COLOR" in os.environ or not sys.stdout.isatty()
    return text if plain else f"\x1b[1m{text}\x1b[0m"


def say(text: str = "") -> None:
    """Print a line of the story."""
    print(text, flush=True)


@contextmanager
def chapter(title: str) -> Iterator[None]:
    """Print a chapter's title, and at its end the time that the chapter took."""
    begun = time.monotonic()
    say(f"\n{bold(title)}")
    yield
    say(f"  ({units.duration(time.monotonic() - begun)})")


def minkactl(cluster: LocalCluster, *arguments: str) -> None:
    """Run a command as a person would type it; its output is part of the story."""
    say(bold(f"$ minkactl {shlex.join(arguments)}"))
    environment = os.environ | {"MINKA_ENDPOINTS": ",".join(cluster.endpoints)}
    command = [sys.executable, "-m", "minkactl", *arguments]
    if sys.stdout.isatty():
        status = subprocess.run(command, env=environment, check=False).returncode
    else:
        status = for_a_person(command, environment | {"TERM": "dumb", "COLUMNS": "120", "LINES": "40"})
    if status != 0:
        raise MinkaError(Code.INTERNAL, f"minkactl {shlex.join(arguments)} ended with status {status}")


def for_a_person(command: list[str], environment: dict[str, str]) -> int:
    """Run a command on a plain terminal of its own, and print the output that a person would see; returns the exit
    status.
    """
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower)
    os.close(follower)
    with open(leader, "rb", buffering=0) as output:
        while True:
            try:
                part = output.read(65536)
            except OSError:  # EIO: the other side is closed
                break
            print(part.decode("utf-8", "replace").replace("\r\n", "\n"), end="", flush=True)
    return process.wait()
