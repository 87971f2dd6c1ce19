"""The file by which minkactl and clients find the playground of this user."""

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Playground:
    """A running playground: its process, its control socket and its nodes' endpoints."""

    pid: int
    socket: str
    endpoints: tuple[str, ...]


def path() -> "Path":
    """The file's path: `$XDG_RUNTIME_DIR/minka-playground.json`. Without `$XDG_RUNTIME_DIR` the file is in the folder
    for temporary files, and the file's name has this user's id: minka-playground-1000.json.
    """
    from pathlib import Path

    return Path(_file())


def _file() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and os.path.isdir(runtime):
        return os.path.join(runtime, "minka-playground.json")
    import tempfile  # not at the top: it imports much

    return os.path.join(tempfile.gettempdir(), f"minka-playground-{os.getuid()}.json")


def read() -> Playground | None:
    """This user's running playground. None if no playground runs, even if a killed playground has left its file."""
    try:
        with open(_file(), encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None  # another user wrote it: everybody may write to the folder for temporary files
            content = json.load(file)
        found = Playground(int(content["pid"]), str(content["socket"]), tuple(map(str, content["endpoints"])))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if os.path.exists(found.socket) and os.path.exists(f"/proc/{found.pid}") else None


def write(playground: Playground) -> None:
    """Write the file, and replace an older one."""
    import tempfile

    target = path()
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(playground), file)
    os.replace(temporary, target)


def remove() -> None:
    """Remove the file, if it is there."""
    path().unlink(missing_ok=True)
