"""The classes of errors that `except` clauses name, and the names that `import minka` offers."""

import pickle
import re
import subprocess
import sys
import traceback
from typing import Any

import click
import pytest

import minka
from minka.engine.batch_error import BatchError, Failure
from minka.errors import Code, CodeInfo, MinkaError, kind_of
from minkactl import cli

KINDS = (
    minka.Conflict,
    minka.ConsistencyNotReached,
    minka.DeadlineExceeded,
    minka.InternalError,
    minka.InvalidArgument,
    minka.LocalFailure,
    minka.NotFound,
    minka.NotInstalled,
    minka.OutcomeUnknown,
    minka.Unavailable,
)


def failure(code: minka.Code) -> Failure:
    return Failure((b"k",), "athens", "athens:7400", minka.MinkaError(code, "the reason"))


@pytest.mark.parametrize("code", minka.Code)
def test_every_code_has_a_class_that_tells_whether_to_repeat(code: minka.Code) -> None:
    error = minka.MinkaError(code, "the reason")
    assert type(error) in KINDS
    assert str(error) == f"{code.name}: the reason"
    # A program may repeat a call that raised Unavailable. This class has exactly the codes for calls that did nothing
    # and may work later.
    assert isinstance(error, minka.Unavailable) == code.info.retriable
    assert isinstance(error, minka.OutcomeUnknown) == (code.name in ("OUTCOME_UNKNOWN", "DEADLINE_EXCEEDED"))


@pytest.mark.parametrize(
    ("code", "kind", "builtin"),
    [
        ("UNKNOWN_KEYSPACE", minka.NotFound, LookupError),
        ("TOO_LARGE", minka.InvalidArgument, ValueError),
        ("KEYSPACE_EXISTS", minka.Conflict, minka.MinkaError),
        ("STALE_PLAN", minka.Conflict, minka.MinkaError),
        ("UNREACHABLE", minka.Unavailable, minka.MinkaError),
        ("PARTITION_OFFLINE", minka.Unavailable, minka.MinkaError),
        ("PARTITION_NOT_HERE", minka.Unavailable, minka.MinkaError),
        ("UNKNOWN_PARTITION", minka.NotFound, LookupError),
        ("CONSISTENCY_NOT_REACHED", minka.ConsistencyNotReached, minka.MinkaError),
        ("ADDRESS_IN_USE", minka.LocalFailure, minka.MinkaError),
        ("PLAYGROUND_FAILED", minka.LocalFailure, minka.MinkaError),
        ("SPARK_MISSING", minka.NotInstalled, ImportError),
        ("PACKAGE_MISSING", minka.NotInstalled, ImportError),
        ("OVERLOADED", minka.Unavailable, minka.MinkaError),
        ("DEADLINE_EXCEEDED", minka.DeadlineExceeded, TimeoutError),
        ("OUTCOME_UNKNOWN", minka.OutcomeUnknown, minka.MinkaError),
        ("CORRUPT_DATA", minka.InternalError, minka.MinkaError),
    ],
)
def test_the_class_of_each_code(code: str, kind: type[minka.MinkaError], builtin: type[Exception]) -> None:
    error = minka.MinkaError(minka.Code[code], "the reason", node="athens")
    assert type(error) is kind
    assert isinstance(error, builtin)
    assert kind_of(minka.Code[code]) is kind


@pytest.mark.parametrize("code", minka.Code)
def test_remedies_suit_programs_too(code: minka.Code) -> None:
    """A remedy may name an option of minkactl in a whole command. Elsewhere it also names the argument of the Python
    API.
    """
    for remedy in (code.info.remedy, code.info.node_remedy):
        without_commands = re.sub(r"minkactl [a-z-]+( [a-z-]+)*( --?[a-zA-Z-]+| [A-Z]+| offline)*", "", remedy)
        for option in re.findall(r"--([a-z-]+)", without_commands):
            assert re.search(rf"\b{option.replace('-', '_')}\b(?!-)", without_commands.replace(f"--{option}", "")), (
                remedy
            )


def test_the_commands_in_remedies_exist() -> None:
    group = cli.cli
    for code in minka.Code:
        for name, verb in re.findall(r"minkactl ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", code.info.remedy):
            command = group.get_command(click.Context(group), name)
            assert command is not None, (code, name)
            if isinstance(command, click.Group) and verb in command.commands:
                continue
            assert not isinstance(command, click.Group) or command.invoke_without_command, (code, name, verb)


def test_the_class_of_an_error_follows_from_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minka.Code.INTERNAL, "_value_", CodeInfo("It can't be found.", "Look.", False, "NOT_FOUND"))
    assert isinstance(minka.MinkaError(minka.Code.INTERNAL, ""), minka.NotFound)


@pytest.mark.parametrize("code", [minka.Code.UNREACHABLE, minka.Code.DEADLINE_EXCEEDED, minka.Code.TOO_LARGE])
def test_errors_can_be_pickled(code: minka.Code) -> None:
    error = minka.MinkaError(code, "the reason", node="athens")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    assert (type(again), again.code, again.message, again.details) == (type(error), code, error.message, error.details)
    batch = pickle.loads(pickle.dumps(BatchError([failure(code)], 3)))  # noqa: S301
    assert isinstance(batch, BatchError)
    assert (batch.code, str(batch)) == (code, str(BatchError([failure(code)], 3)))
    assert batch.failures[0].error.code is code


def test_the_class_of_a_batch_error_is_that_of_its_gravest_failure() -> None:
    moment = BatchError([failure(minka.Code.UNREACHABLE), failure(minka.Code.OVERLOADED)], 9)
    assert isinstance(moment, minka.Unavailable)
    kinds = {minka.Code.TOO_LARGE: minka.InvalidArgument, minka.Code.OUTCOME_UNKNOWN: minka.OutcomeUnknown}
    for code, kind in kinds.items():
        bases = type(BatchError([failure(minka.Code.UNREACHABLE), failure(code)], 9)).__mro__
        assert kind in bases
        assert minka.Unavailable not in bases
    late = BatchError([failure(minka.Code.DEADLINE_EXCEEDED)], 9)
    assert TimeoutError in type(late).__mro__
    assert str(late).startswith("DEADLINE_EXCEEDED: 1 of 9 keys failed")


async def test_the_client_raises_these_classes() -> None:
    with pytest.raises(minka.Unavailable) as caught:
        async with minka.AsyncClient(["127.0.0.1:1"], keyspace="flights", timeout=1) as client:
            await client.get("UA1545")
    assert caught.value.code is minka.Code.UNREACHABLE
    with pytest.raises(ValueError, match="isn't host:port"):
        minka.Client(["nowhere"])


def test_dir_lists_the_public_names() -> None:
    assert {"Client", "Code", "MinkaError", "Unavailable", "AsyncClient", "duties", "admin"} <= set(dir(minka))
    for name in dir(minka):
        assert getattr(minka, name) is not None
    with pytest.raises(AttributeError, match="nope"):
        _: Any = minka.nope  # type: ignore[attr-defined]


def test_importing_minka_or_its_errors_does_not_load_grpc() -> None:
    def loaded(code: str) -> set[str]:
        script = f"{code}; import sys; print(*sys.modules)"
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
        return {name.partition(".")[0] for name in run.stdout.split()} & {"grpc", "google", "asyncio"}

    assert loaded("import minka; dir(minka)") == set()
    assert "grpc" not in loaded("import minka; minka.MinkaError, minka.Code, minka.Unavailable")


def test_a_traceback_shows_the_remedy() -> None:
    error = MinkaError(Code.UNKNOWN_KEYSPACE, "there is no keyspace flights")
    for one in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert traceback.format_exception_only(one)[-1] == f"remedy: {Code.UNKNOWN_KEYSPACE.info.remedy}\n"
    error = MinkaError(Code.UNREACHABLE, "athens does not answer", remedy="Start athens.")
    for one in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert one.remedy == "Start athens."
        assert traceback.format_exception_only(one)[-1] == "remedy: Start athens.\n"
