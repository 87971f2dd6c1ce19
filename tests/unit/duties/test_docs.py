"""The delegate in the first example of docs/duties.md works."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minka.duties import Delegate, Duty
from minka.testing import held

DOCUMENT = Path(__file__).parents[3] / "docs" / "duties.md"


def first_delegate() -> type[Delegate]:
    """Run the code of the first example; returns its class."""
    text = DOCUMENT.read_text().partition("    import asyncio\n")[2].partition("    run_shard(")[0]
    names: dict[str, Any] = {}
    exec("import asyncio\n" + "".join(line.removeprefix("    ") for line in text.splitlines(keepends=True)), names)  # noqa: S102 - it is the project's
    return names["Fetcher"]  # type: ignore[no-any-return]


def duty(number: int) -> Duty:
    return held(Duty(number=number, epoch=1, pallet="feeds", id=f"d{number}"))


async def test_a_release_that_is_cut_short_can_be_repeated() -> None:
    began, ending = asyncio.Event(), asyncio.Event()

    class Slow(first_delegate()):  # type: ignore[misc]
        async def poll(self, duty: Duty) -> None:
            try:
                began.set()
                await asyncio.Event().wait()
            finally:
                ending.set()
                await asyncio.Event().wait()  # stands for a last write that takes long

    fetcher = Slow()
    duties: Sequence[Duty] = [duty(1)]
    await fetcher.attach(duties)
    await began.wait()
    release = asyncio.create_task(fetcher.detach(duties))
    await ending.wait()
    release.cancel()  # the library does this after `call_timeout`
    await asyncio.wait([release])
    assert release.cancelled()
    await fetcher.detach(duties)
    assert not fetcher.tasks
