"""Runs commands that undo a test's changes to the machine, even if the test fails or its process is killed."""

import shlex
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

# A shell that reads commands, one a line, from its stdin. When the test closes this pipe, or the test process ends, the
# shell runs the commands, the last one first. The shell ignores the signals that may end the test.
_KEEPER: Final = "trap '' HUP INT TERM PIPE; tac | sh"
_TIMEOUT_S: Final = 30.0


class NotPermitted(Exception):
    """Raised if this machine or this user can't do what the test needs; the message says why."""


class Undo:
    """Collects commands. At the end of the `with` block, or when this process is killed, a helper process runs the
    commands, the last one first.
    """

    def __init__(self) -> None:
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "minka-undo"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that Ctrl-C doesn't reach it
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _, failures = self._keeper.communicate(timeout=_TIMEOUT_S)
        assert not failures, f"not everything was undone: {failures}"

    def add(self, *commands: Sequence[str]) -> None:
        """Add commands that undo the same thing in different ways: each runs only if the ones before it have failed."""
        assert self._keeper.stdin is not None, "it was started with a pipe"
        self._keeper.stdin.write(" 2>/dev/null || ".join(map(shlex.join, commands)) + "\n")
        self._keeper.stdin.flush()


def run(*command: str) -> str:
    """Run the command; returns its output. Raises NotPermitted if it fails, for example because it needs root."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or error
        raise NotPermitted(f"{' '.join(command)}: {reason}".strip()) from error
