"""The owner of each task hears of its end, and nothing in the daemon starts tasks without an owner."""

import ast
import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minka.errors import Code, MinkaError
from minkad.process import tasks

MINKAD = Path(__file__).parents[3] / "minkad"
STARTS = {"create_task", "ensure_future"}


class Ends:
    """Notes the calls of the loop's exception handler."""

    def __init__(self) -> None:
        self.contexts: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.contexts.append(context))

    def of_node(self) -> list[BaseException]:
        """The errors that end the node."""
        return [context["exception"] for context in self.contexts if context.get(tasks.ENDS_NODE)]


async def fails(error: BaseException) -> None:
    raise error


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_error_of_a_task_without_an_owner_ends_the_node() -> None:
    ends, error = Ends(), ValueError("x")
    tasks.start(fails(error), "a")
    await turns()
    assert ends.of_node() == [error]


async def test_an_error_goes_to_the_owner() -> None:
    ends, error = Ends(), ValueError("x")
    told: list[BaseException] = []
    tasks.start(fails(error), "a", told.append)
    await turns()
    assert (told, ends.of_node()) == ([error], [])


async def test_a_cancelled_task_is_not_an_error() -> None:
    ends = Ends()
    task = tasks.start(asyncio.Event().wait(), "a")
    await turns()
    task.cancel()
    await turns()
    assert task.cancelled()
    assert ends.contexts == []


async def test_a_task_that_awaits_a_cancelled_future_is_an_error() -> None:
    ends = Ends()
    future = asyncio.get_running_loop().create_future()

    async def waits() -> None:
        await future

    tasks.start(waits(), "a")
    await turns()
    future.cancel()
    await turns()
    assert [type(error) for error in ends.of_node()] == [asyncio.CancelledError]


@pytest.mark.parametrize(
    ("error", "ends_node"), [(ValueError("x"), True), (MinkaError(Code.UNREACHABLE, "away"), False)]
)
async def test_an_error_of_an_awaited_task_that_nobody_awaits_ends_the_node(
    monkeypatch: pytest.MonkeyPatch, error: Exception, ends_node: bool
) -> None:
    monkeypatch.setattr(tasks, "TAKEN_WITHIN_S", 0.0)
    ends = Ends()
    task = tasks.awaited(fails(error), "a")
    await asyncio.sleep(0.01)
    await turns()
    assert ends.of_node() == ([error] if ends_node else [])
    assert task.exception() is error


async def test_an_error_that_is_awaited_or_dropped_does_not_end_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TAKEN_WITHIN_S", 0.0)
    ends = Ends()
    with pytest.raises(ValueError, match="x"):
        await tasks.awaited(fails(ValueError("x")), "a")
    dropped = tasks.awaited(fails(ValueError("x")), "b")
    tasks.drop(dropped)
    done = tasks.awaited(fails(ValueError("x")), "c")
    done.add_done_callback(tasks.drop)
    await asyncio.sleep(0.01)
    await turns()
    assert ends.contexts == []


async def test_a_thread_that_dies_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # so that monkeypatch restores it at the end
    ends, error = Ends(), ValueError("x")
    tasks.watch_threads(asyncio.get_running_loop())

    def work() -> None:
        raise error

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    await turns()
    assert ends.of_node() == [error]


def _groups(tree: ast.AST) -> set[str]:
    """The names of the variables that hold task groups, which own the tasks that they start."""
    items = [item for node in ast.walk(tree) if isinstance(node, ast.AsyncWith) for item in node.items]
    return {
        ast.unparse(i.optional_vars) for i in items if i.optional_vars and "TaskGroup" in ast.unparse(i.context_expr)
    }


def _started(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text())
    groups = _groups(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "asyncio":
            yield from (f"{file}:{node.lineno}" for alias in node.names if alias.name in STARTS | {"Task"})
        if isinstance(node, ast.Attribute) and node.attr in STARTS and ast.unparse(node.value) not in groups:
            yield f"{file}:{node.lineno}"


def test_only_tasks_py_and_task_groups_start_tasks() -> None:
    """The linter finds only calls of `asyncio.create_task`. This test also finds calls of a loop's `create_task`."""
    files = [file for file in MINKAD.rglob("*.py") if file != MINKAD / "process" / "tasks.py"]
    assert len(files) > 100
    assert [where for file in files for where in _started(file)] == []
