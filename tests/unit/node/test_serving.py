"""A node's reaction to a disk failure while the node stops."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from minka.errors import Code, MinkaError
from minkad.node.serving import Serving
from minkad.node.wiring import Parts


async def test_a_disk_failure_while_the_node_ends_raises_no_other_error() -> None:
    log_db = SimpleNamespace(error=None, on_failure=None)
    parts = cast("Parts", SimpleNamespace(log_db=log_db, config=None))
    serving = Serving(parts, cast("Any", None), None)
    watching = asyncio.create_task(serving._log_failure())
    await asyncio.sleep(0)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert log_db.on_failure is not None
    log_db.on_failure(MinkaError(Code.STORAGE_FAILED, "the disk fails while the node stops"))
