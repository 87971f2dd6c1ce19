"""A server of small Atom feeds. It invents their items, and records which worker polls which feed.

GET /feeds/17 returns a feed, and GET /polls the workers that have polled each feed. The first line of output is the
server's URL.
"""

import argparse
import asyncio
import random
import time
from collections import deque
from typing import Final
from xml.sax.saxutils import escape

from aiohttp import web

from examples.feeds.items import ATOM

KEPT: Final = 20  # the number of items in a feed's document: the newest ones
NEW_S: Final = 0.05  # between two new items; each goes to a random feed

_FEED: Final = '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="%s"><id>%s</id><title>Feed %d</title>%s</feed>\n'
_ENTRY: Final = "<entry><id>%s</id><title>%s</title></entry>"
_WORDS: Final = ("harbour", "market", "bridge", "council", "library", "railway", "festival", "museum", "river", "tower")


class Feed:
    """One feed, and the workers that have polled it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.published = 0
        self.polls: list[list[str | int | float]] = []  # rows of worker, epoch, first and last poll
        self.out_of_turn = 0  # polls by a worker after another worker had got the feed
        self._entries: deque[str] = deque(maxlen=KEPT)

    def publish(self, rng: random.Random) -> None:
        """Publish one more item."""
        self.published += 1
        title = escape(f"News of the {rng.choice(_WORDS)} and the {rng.choice(_WORDS)}")
        self._entries.append(_ENTRY % (f"urn:feed:{self.number}:{self.published}", title))

    def poll(self, worker: str, epoch: int) -> str:
        """Record the worker's poll; returns the feed's document."""
        now = time.monotonic()
        last = self.polls[-1] if self.polls else None
        if last is not None and last[:2] == [worker, epoch]:
            last[3] = now
        else:
            self.out_of_turn += last is not None and epoch < int(last[1])
            self.polls.append([worker, epoch, now, now])
        return _FEED % (ATOM, f"urn:feed:{self.number}", self.number, "".join(self._entries))


async def serve(count: int, port: int) -> None:
    """Serve this number of feeds on the port until cancelled."""
    feeds = [Feed(number) for number in range(count)]
    rng = random.Random(count)
    for feed in feeds:
        feed.publish(rng)

    async def poll(request: web.Request) -> web.Response:
        try:
            asked = feeds[int(request.match_info["number"])]
        except IndexError:
            raise web.HTTPNotFound from None
        epoch = int(request.headers.get("X-Epoch", "0"))
        text = asked.poll(request.headers.get("User-Agent", ""), epoch)
        return web.Response(text=text, content_type="application/atom+xml")

    async def polls(_: web.Request) -> web.Response:
        return web.json_response(
            {
                "now": time.monotonic(),
                "published": sum(feed.published for feed in feeds),
                "out_of_turn": sum(feed.out_of_turn for feed in feeds),
                "feeds": [feed.polls for feed in feeds],
            }
        )

    app = web.Application()
    app.add_routes([web.get(r"/feeds/{number:\d+}", poll), web.get("/polls", polls)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    while True:
        await asyncio.sleep(NEW_S)
        rng.choice(feeds).publish(rng)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--feeds", type=int, default=200, help="the number of feeds")
    parser.add_argument("--port", type=int, default=0, help="the port to listen on (0: a free one)")
    given = parser.parse_args()
    asyncio.run(serve(given.feeds, given.port))
