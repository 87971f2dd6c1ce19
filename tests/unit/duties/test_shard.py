"""What a shard can be made of, and what it tells its program."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from minka.duties import Capacity, Delegate, Duty, Shard
from minka.duties._events import Method
from minka.duties._user_calls import methods_of
from minka.errors import Code, MinkaError


class Fetcher(Delegate):
    def attach(self, duties: Sequence[Duty]) -> None: ...

    def detach(self, duties: Sequence[Duty]) -> None: ...


class Ducklike:
    """A delegate that is no `Delegate`."""

    async def attach(self, duties: Sequence[Duty]) -> None: ...

    async def detach(self, duties: Sequence[Duty]) -> None: ...


PALLETS: list[tuple[str, Any]] = [
    ("0 pallets: a shard takes the duties of 1 to 1,000", {}),
    ("1001 pallets: a shard takes", dict.fromkeys(map(str, range(1001)))),
    ("pallets is list, not a mapping", ["feeds"]),
    ("the capacity for feeds is 5, not a Capacity or None", {"feeds": 5}),
    ("the capacity for feeds is -1, not a whole number", {"feeds": Capacity(-1)}),
    ("the capacity for feeds is '5', not a whole number", {"feeds": Capacity("5")}),  # type: ignore[arg-type]
    ("the name of a pallet is int, not str", {5: None}),
    ("the name of a pallet must have no slash: 'mail/in'", {"feeds": None, "mail/in": None}),
    ("the name of a pallet must have no control characters", {"\udcff": None}),
    ("the name of a pallet must have 256 characters at most", {"x" * 257: None}),
    ("the name of a pallet must not be empty", {"": None}),
]


def made(**given: Any) -> Shard:
    return Shard(**{"delegate": Fetcher(), "pallets": {"feeds": None}, "endpoints": ["athens:7400"], **given})


@pytest.mark.parametrize(
    ("why", "given"),
    [
        *((why, {"pallets": pallets}) for why, pallets in PALLETS),
        ("a grace of -1: must be seconds from 0 to 604800", {"grace": -1}),
        ("a grace of '5': must be seconds", {"grace": "5"}),
        ("on_stuck is 'shrug', not exit or report", {"on_stuck": "shrug"}),
        ("None is no positive time in seconds", {"call_timeout": None}),
        ("inf is no positive time in seconds", {"call_timeout": float("inf")}),
        ("no endpoint is given", {"endpoints": []}),
        ("endpoints is NoneType, not a list of strings", {"endpoints": None}),
        ("endpoint None is not of the form host:port", {"endpoints": [None]}),
        ("the name of a shard is int, not str", {"name": 5}),
        ("the name of a shard must have no control characters", {"name": "bad\nname"}),
        ("the version is int, not str", {"version": 2}),
        ("the version must have 64 characters at most, not 65", {"version": "1" * 65}),
        ("the node is NoneType, not str", {"node": None}),
        ("tls is int, not minka.Tls", {"tls": 5}),
        ("the delegate is NoneType, which has no attach: attach and detach are needed", {"delegate": None}),
        ("the delegate is the class Fetcher: an instance is wanted", {"delegate": Fetcher}),
        ("the delegate is Delegate, which has no", {"delegate": Delegate()}),
        (
            "the delegate is SimpleNamespace, of which attach can't be called",
            {"delegate": SimpleNamespace(attach=1, detach=print)},
        ),
    ],
)
def test_what_is_not_well_formed_is_refused(why: str, given: dict[str, object]) -> None:
    with pytest.raises(MinkaError, match=why) as refused:
        made(**given)
    assert refused.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(("why", "pallets"), PALLETS)
async def test_a_shard_does_not_become_what_is_not_well_formed(why: str, pallets: Any) -> None:
    shard = made()
    with pytest.raises(MinkaError, match=why) as refused:
        shard.resize(pallets)
    assert refused.value.code is Code.INVALID_ARGUMENT
    assert [one.pallet for one in shard._machine.shard.pallets] == ["feeds"]


@pytest.mark.parametrize("make", [Fetcher, Ducklike])
def test_a_delegate_has_the_methods_that_it_defines(make: Callable[[], Any]) -> None:
    methods = methods_of(make())
    assert methods.keys() == {Method.ATTACH, Method.DETACH}
    assert {method.on_loop for method in methods.values()} == {make is Ducklike}
