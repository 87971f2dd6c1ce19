"""A worker that polls the feeds that the cluster gives it, and stores new items."""

import argparse
import asyncio
import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import ParseError

from aiohttp import ClientError, ClientSession

from examples.feeds.items import Items, StaleToken, parse
from minka.duties import Capacity, Delegate, Duty, run_shard

INTERVAL_S = 1.0  # between two polls of a feed
log = logging.getLogger("feeds")


class Poller(Delegate):
    """Runs a task for each feed. It has no `update`, so a feed whose URL was changed is detached and attached again."""

    def __init__(self, name: str, items: Items) -> None:
        self._name, self._items = name, items
        self._tasks: dict[Duty, asyncio.Task[None]] = {}

    async def attach(self, duties: Sequence[Duty]) -> None:
        self._tasks |= {duty: asyncio.create_task(self._poll(duty)) for duty in duties}

    async def detach(self, duties: Sequence[Duty]) -> None:
        tasks = [self._tasks[duty] for duty in duties if duty in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # another worker may begin only after that
        for duty in duties:
            self._tasks.pop(duty, None)

    async def _poll(self, duty: Duty) -> None:
        headers = {"User-Agent": self._name, "X-Epoch": str(duty.epoch)}
        async with ClientSession(headers=headers) as http:
            while True:
                try:
                    if duty.is_held():
                        async with http.get(duty.payload.decode(), raise_for_status=True) as response:
                            self._items.add(duty.id, duty.epoch, self._name, parse(await response.text()))
                except (ClientError, TimeoutError, ParseError, StaleToken, sqlite3.Error) as error:
                    log.warning("%s: %s", duty.id, error)
                await asyncio.sleep(INTERVAL_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="this worker's name; use the same one after a restart")
    parser.add_argument("--endpoints", required=True, help="addresses of some nodes of the cluster: HOST:PORT,…")
    parser.add_argument("--capacity", type=int, default=2000, help="the largest sum of its feeds' weights")
    parser.add_argument("--items", type=Path, default=Path("items.sqlite"), help="where items are stored")
    given = parser.parse_args()
    poller = Poller(given.name, Items(given.items))
    run_shard(poller, {"feeds": Capacity(given.capacity)}, given.endpoints.split(","), name=given.name)
