"""The asyncio clients and the synchronous ones are twins: they have the same methods, with the same signatures."""

import dataclasses
import inspect
import itertools
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any

import pytest

import minka
import minka.duties

PAIRS: list[tuple[type, type]] = [
    (minka.Client, minka.AsyncClient),
    (minka.Keyspace, minka.AsyncKeyspace),
    (minka.duties.Client, minka.duties.AsyncClient),
]
SYNC: dict[str, str] = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
OF: dict[Any, Any] = {
    AsyncIterator: lambda item: Iterator[item],  # type: ignore[valid-type]
    AsyncGenerator: lambda item, sent: Generator[item, sent, None],  # type: ignore[valid-type]
    minka.AsyncKeyspace: minka.Keyspace,
}


def in_sync(hint: Any) -> Any:
    """The synchronous twin's type for the asyncio type `hint`."""
    origin = typing.get_origin(hint)
    return OF[origin](*typing.get_args(hint)) if origin in OF else OF.get(hint, hint)


def shape(function: Any) -> list[Any]:
    """The signatures of a method and of its overloads, with the synchronous twin's types in place of asyncio types."""
    shapes: list[Any] = []
    function = getattr(function, "fget", function)
    for one in (function, *typing.get_overloads(function)):
        hints = {name: in_sync(hint) for name, hint in typing.get_type_hints(one).items()}
        shapes.append(
            [(p.name, p.kind, p.default, hints.get(p.name)) for p in inspect.signature(one).parameters.values()]
        )
        shapes.append(hints.get("return"))
    return shapes


def methods(kind: type) -> dict[str, Any]:
    found = inspect.getmembers(kind, lambda member: inspect.isfunction(member) or isinstance(member, property))
    public = {name: member for name, member in found if not name.startswith("_")}
    special = {SYNC.get(name, name): member for name, member in found if name in ("__init__", *SYNC, *SYNC.values())}
    return public | special


@pytest.mark.parametrize(("sync", "twin"), PAIRS)
def test_the_twins_have_the_same_methods_with_the_same_signatures(sync: type, twin: type) -> None:
    ours, theirs = methods(sync), methods(twin)
    if sync is minka.Keyspace:  # for the library alone; the twins' arguments differ
        del ours["__init__"], theirs["__init__"]
    assert ours.keys() == theirs.keys()
    for name, method in ours.items():
        assert shape(method) == shape(theirs[name]), name


@pytest.mark.parametrize(("sync", "twin"), PAIRS)
def test_the_twins_say_the_same_of_their_methods(sync: type, twin: type) -> None:
    """A synchronous method's docstring refers to the asyncio one ("As `AsyncClient.get` …"), or has the same words."""
    for name, method in inspect.getmembers(sync, inspect.isfunction):
        text = inspect.getdoc(method) or ""
        if name.startswith("_") or text.startswith(f"As `{twin.__name__}.{name}`"):
            continue
        told = " ".join((inspect.getdoc(getattr(twin, name)) or "").split())
        for ours, theirs in (("contextlib.closing", "contextlib.aclosing"), (" in other threads", "")):
            text = text.replace(ours, theirs)
        assert " ".join(text.split()) == told, name


@pytest.mark.parametrize(("sync", "twin"), PAIRS)
def test_the_asyncio_twin_has_coroutines_and_the_synchronous_one_has_none(sync: type, twin: type) -> None:
    iterating = {"list", "scan", "scan_pages"}
    waiting = {name for name, method in methods(twin).items() if inspect.iscoroutinefunction(method)}
    assert waiting == methods(twin).keys() - {"__init__", "keyspace", "name"} - iterating
    assert not [name for name, method in methods(sync).items() if inspect.iscoroutinefunction(method)]


@pytest.mark.parametrize(("sync", "twin"), PAIRS)
def test_methods_that_iterate_refuse_a_bad_argument_at_the_call(sync: Any, twin: Any) -> None:
    names = {"scan", "scan_pages", "list"} & methods(sync).keys()
    for client, name in itertools.product((made(sync), made(twin)), names):
        for bad in ({"shard": "\n"} if name == "list" else {"limit": 0}, {"timeout": -1}):
            with pytest.raises(minka.InvalidArgument):
                getattr(client, name)(**bad)


def made(kind: Any) -> Any:
    if kind in (minka.Keyspace, minka.AsyncKeyspace):
        return made(minka.Client if kind is minka.Keyspace else minka.AsyncClient).keyspace("flights")
    return kind(["127.0.0.1:1"], **({"keyspace": "flights"} if hasattr(kind, "keyspace") else {}))


def named(hint: Any) -> Iterator[type]:
    """Yield the classes that a type hint names. For a dataclass, the classes of its fields follow."""
    for part in typing.get_args(hint):
        yield from named(part)
    if isinstance(hint, type):
        yield hint
        if dataclasses.is_dataclass(hint) and hint.__module__.startswith("minka.duties."):
            hints = typing.get_type_hints(hint)
            for one in dataclasses.fields(hint):
                if not one.name.startswith("_"):
                    yield from named(hints[one.name])


@pytest.mark.parametrize("kind", [minka.duties.Client, minka.duties.Shard, minka.duties.Delegate])
def test_the_types_of_arguments_and_results_are_exported(kind: type) -> None:
    hints = [hint for method in methods(kind).values() for hint in _hints(method)]
    own = {one for hint in hints for one in named(hint) if one.__module__.startswith("minka.")}
    exported = {getattr(module, name) for module in (minka, minka.duties) for name in module.__all__}
    assert {one.__name__ for one in own - exported} <= {"Plan"}


def _hints(method: Any) -> list[Any]:
    function = method.fget if isinstance(method, property) else method
    return list(typing.get_type_hints(function).values())


def test_every_exported_name_exists() -> None:
    for name in minka.duties.__all__:
        assert getattr(minka.duties, name) is not None
    assert dir(minka.duties) == sorted(minka.duties.__all__)
    with pytest.raises(AttributeError, match=r"module 'minka\.duties' has no attribute 'aio'"):
        minka.duties.aio  # type: ignore[attr-defined]  # noqa: B018
