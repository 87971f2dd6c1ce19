"""A scan: pages of pairs in the order of their keys, from one partition after the other. Some pages are read ahead.

A scan goes on by key, not by partition: a page names the range for which it is complete, and the next page begins at
the end of this range, in the partition that then has that key. So each key comes only once, even while partitions are
split and moved.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final, TypeVar

from minka.cluster.key_ranges import KeyRange
from minka.cluster.routing_table import RangeRoutes
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import Op, ScanBody, ScanPage

if TYPE_CHECKING:
    from minka.engine.core import Core

Pairs = list[tuple[bytes, bytes]]
_Row = TypeVar("_Row")

PAGE_ROWS: Final = 2000
PAGE_BYTES: Final = 512 * 1024
_PAGES_AHEAD: Final = 2  # the most pages that are read ahead from one partition
_PARTITIONS_AHEAD: Final = 3  # the partitions that are read ahead, besides the partition whose pages come now


async def scan_pages(
    core: "Core", name: str, wanted: KeyRange, limit: int | None, reverse: bool, timeout: float
) -> AsyncGenerator[Pairs, None]:
    """Lists of pairs, none of them empty. Every page takes at most `timeout` seconds. Raises NOT_BY_RANGES, and the
    errors of a read.
    """
    routes = (await core.begin(name, Op.SCAN, timeout)).routes
    if not isinstance(routes, RangeRoutes):
        raise MinkaError(Code.NOT_BY_RANGES, f"keyspace {name} is not partitioned by ranges", keyspace=name)
    if wanted.end and wanted.start >= wanted.end:
        return
    waiting = deque(routes.overlapping(wanted))
    if reverse:
        waiting.reverse()
    # If one page may be enough, one partition is asked at a time.
    at_once = 1 if limit is not None and limit <= PAGE_ROWS else 1 + _PARTITIONS_AHEAD
    begun: deque[_Stretch] = deque()
    try:
        while waiting or begun:
            while waiting and len(begun) < at_once:
                begun.append(_Stretch(core, name, waiting.popleft(), limit, reverse, timeout))
            page = await begun[0].next_page()
            if page is None:
                begun.popleft()
                continue
            pairs = list(zip(page.keys, page.values, strict=True))
            if limit is not None:
                pairs = pairs[:limit]
                limit -= len(pairs)
            if pairs:
                yield pairs
            if limit == 0:
                return
    finally:
        for stretch in begun:
            await stretch.close()


async def rows_of(pages: AsyncGenerator[list[_Row], None]) -> AsyncGenerator[_Row, None]:
    """The rows of the pages, one by one."""
    try:
        async for page in pages:
            for row in page:
                yield row
    finally:
        await pages.aclose()


class _Stretch:
    """One range of a scan: the range of one partition at the scan's start. Its own task reads its pages ahead."""

    def __init__(
        self, core: "Core", name: str, wanted: KeyRange, limit: int | None, reverse: bool, timeout: float
    ) -> None:
        self._core = core
        self._name = name
        self._left = wanted
        self._limit = limit
        self._reverse = reverse
        self._timeout = timeout
        self._pages: asyncio.Queue[ScanPage | Exception | None] = asyncio.Queue(_PAGES_AHEAD)
        self._task = core.loop.create_task(self._run(), name=f"scan of {name}")

    async def next_page(self) -> ScanPage | None:
        """The next page; None after the last one. Raises MinkaError."""
        page = await self._pages.get()
        if isinstance(page, Exception):
            raise page
        return page

    async def close(self) -> None:
        """Stop reading pages ahead."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._limit is None or self._limit > 0:
                page = await self._ask()
                await self._pages.put(page)
                if self._advance_past(page):
                    break
            await self._pages.put(None)
        except MinkaError as error:
            await self._pages.put(error)

    async def _ask(self) -> ScanPage:
        rows = PAGE_ROWS if self._limit is None else min(self._limit, PAGE_ROWS)
        call = await self._core.begin(self._name, Op.SCAN, self._timeout)
        call.add_scan(ScanBody(self._left.start, self._left.end, self._reverse, rows, PAGE_BYTES))
        await call.outcome(0)
        assert call.page is not None, "a scan that was answered has a page"
        return call.page

    def _advance_past(self, page: ScanPage) -> bool:
        """Remove the page's range from the rest of the stretch; return True if nothing is left. Raises INTERNAL."""
        if self._limit is not None:
            self._limit -= len(page.keys)
        left, has = self._left, KeyRange(page.start, page.end)
        if self._reverse:
            fits = has.end == left.end and left.start <= has.start
            self._left = KeyRange(left.start, has.start)
            is_all = has.start == left.start
        else:
            fits = has.start == left.start and (not left.end or b"" != has.end <= left.end)
            self._left = KeyRange(has.end, left.end)
            is_all = has.end == left.end
        if not fits or (not is_all and not page.keys and has.start == has.end):
            raise MinkaError(Code.INTERNAL, f"the node's page has the range {has}, which isn't a part of {left}")
        return is_all
