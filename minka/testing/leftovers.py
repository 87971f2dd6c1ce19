"""Files that must not outlive this process, even if it is killed."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from weakref import WeakSet

# When this process ends, even by SIGKILL, the helper's stdin ends, and `cat` returns. Nodes that end at the same time
# may still write files, so the helper tries several times.
_KEEPER = """trap '' HUP INT TERM; cat > /dev/null; for wait in 0.2 1 3; do rm -rf -- "$@" && exit; sleep $wait; done"""


class Leftovers:
    """Removes paths at `remove()`; if this process is killed before, a helper process removes them."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "minka-leftovers", *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that a Ctrl-C on the terminal doesn't end it
        )
        _all.add(self)

    def remove(self) -> None:
        """Remove the paths now."""
        self._keeper.communicate()

    def forget(self) -> None:
        """Close this process's copy of the helper's stdin."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()


_all: "Final[WeakSet[Leftovers]]" = WeakSet()


def _forget() -> None:
    """In a fork: the helpers' stdin must end with the process that started them."""
    for one in _all:
        one.forget()


os.register_at_fork(after_in_child=_forget)
