"""Named places where a test can make the process fail.

If MINKA_FAILPOINTS_FILE isn't in the environment at import time, a failpoint does nothing: the decorator returns the
function itself. With the variable, each call of the function reads the file that it names, before and after. A line is

    migration.checkpoint.before=kill          the process ends as by kill -9
    migration.checkpoint.after=error          MinkaError(INTERNAL)
    migration.checkpoint.before=pause:FILE    wait until FILE is gone; creates FILE.reached

If the file is empty or missing, nothing happens.
"""

import asyncio
import inspect
import os
import signal
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

from minka.errors import Code, MinkaError

_P = ParamSpec("_P")
_R = TypeVar("_R")

_FILE: Final = "MINKA_FAILPOINTS_FILE"
_ARE_WANTED: Final = _FILE in os.environ
_POLL_S: Final = 0.005
_names: set[str] = set()


def names() -> list[str]:
    """All failpoints declared in the modules imported so far, sorted."""
    return sorted(_names)


def failpoint(name: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make the function, sync or async, a place named `name`."""
    _names.add(name)
    if _ARE_WANTED:
        return lambda function: _wrapped(name, function)
    return lambda function: function


def _wrapped(name: str, function: Callable[_P, _R]) -> Callable[_P, _R]:
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaiting(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            await _pause(_reach(f"{name}.before"))
            result = await function(*args, **kwargs)
            await _pause(_reach(f"{name}.after"))
            return result

        return cast("Callable[_P, _R]", awaiting)

    @wraps(function)
    def calling(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        _block(_reach(f"{name}.before"))
        result = function(*args, **kwargs)
        _block(_reach(f"{name}.after"))
        return result

    return calling


def _reach(place: str) -> Path | None:
    """Take the action that the file names for the place. Returns the file to wait for, if the action is to wait."""
    action = _action(Path(os.environ[_FILE]), place)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "error":
        raise MinkaError(Code.INTERNAL, f"failpoint {place}")
    if not action.startswith("pause:"):
        return None
    until = Path(action.removeprefix("pause:"))
    until.with_name(f"{until.name}.reached").touch()
    return until


def _action(file: Path, place: str) -> str:
    try:
        lines = file.read_text().splitlines()
    except FileNotFoundError:
        return ""
    for line in lines:
        key, _, action = line.partition("=")
        if key.strip() == place:
            return action.strip()
    return ""


async def _pause(until: Path | None) -> None:
    while until is not None and until.exists():  # noqa: ASYNC110, ASYNC240 - another process removes the file
        await asyncio.sleep(_POLL_S)


def _block(until: Path | None) -> None:
    while until is not None and until.exists():
        time.sleep(_POLL_S)
