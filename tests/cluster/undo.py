"""Commands that undo a test's changes to the machine. They are run even if the test fails or is killed."""

import shlex
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

# Its stdin ends when the test process ends, by any signal. Then it runs the lines, the last one first.
_KEEPER: Final = "trap '' HUP INT TERM PIPE; tac | sh"
_TIMEOUT_S: Final = 30.0


class NotPermitted(Exception):
    """This machine, or this user, can't do what the test needs; the text says why."""


class Undo:
    """Collects commands, and runs them at the end, the last one first. If this process is killed, a helper process runs
    them.
    """

    def __init__(self) -> None:
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "minka-undo"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is not meant for it
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _, failures = self._keeper.communicate(timeout=_TIMEOUT_S)
        assert not failures, f"not everything was undone: {failures}"

    def add(self, *commands: Sequence[str]) -> None:
        """Add commands to undo one thing: the first that succeeds is enough."""
        assert self._keeper.stdin is not None, "it was started with a pipe"
        self._keeper.stdin.write(" 2>/dev/null || ".join(map(shlex.join, commands)) + "\n")
        self._keeper.stdin.flush()


def run(*command: str) -> str:
    """The command's output. Raises NotPermitted if it fails, as it does without root's rights."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or error
        raise NotPermitted(f"{' '.join(command)}: {reason}".strip()) from error
