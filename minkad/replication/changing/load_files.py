"""A node gets the files of loads before it joins an in-sync set.

A follower that catches up through the log has the marks of loads, but perhaps not yet their files. If the nodes with
the files went then, this node would lead without a way to the rows of the loads.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from minka.v1.load_api_pb2 import PullFileRequest
from minka.v1.loads_pb2 import LoadFile
from minkad.core.replication.entries import IngestMark, decode_entry, is_mark
from minkad.process import tasks
from minkad.replication.applying.hosted_replica import HostedReplica

log: Final = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 0.5  # then the leader may propose another in-sync set, while the pull goes on
_READ_BYTES: Final = 1024 * 1024

Pull = Callable[[str, PullFileRequest], Awaitable[None]]
_Key = tuple[str, int, str]  # the node, the load's number, the file's name


class LoadFiles:
    """For the loop's thread, at the leader."""

    def __init__(self, pull: Pull) -> None:
        """`pull` lets a node get a file, and raises MinkaError."""
        self._pull = pull
        self._pulls: dict[_Key, asyncio.Task[None]] = {}  # under way

    async def bring(self, replica: HostedReplica, marks: Iterable[IngestMark], nodes: Iterable[str]) -> bool:
        """Let the nodes get the files of these marks. Returns True once they have all. Returns False if a node can't,
        or needs longer: then it goes on, and the next call returns True sooner. A node that has a file answers at once.
        """
        pulls = [self._pulling(node, replica.id, mark) for node in nodes for mark in marks]
        _, slow = await asyncio.wait(pulls, timeout=_WAIT_SECONDS)
        return not slow and not any(one.cancelled() or one.exception() for one in pulls)

    async def close(self) -> None:
        """Give up the pulls under way."""
        pulls = list(self._pulls.values())
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)

    def _pulling(self, node: str, partition_id: int, mark: IngestMark) -> asyncio.Task[None]:
        key = node, mark.load_number, mark.name
        if (known := self._pulls.get(key)) is not None:
            return known
        file = LoadFile(name=mark.name, partition_id=partition_id, bytes=mark.bytes, rows=mark.rows)
        file.checksum = mark.checksum
        request = PullFileRequest(load_number=mark.load_number, file=file)
        task = self._pulls[key] = tasks.awaited(self._ask(node, request), f"pull of {mark.name} by {node}")
        task.add_done_callback(lambda ended: self._ended(key, ended))
        return task

    async def _ask(self, node: str, request: PullFileRequest) -> None:
        await self._pull(node, request)

    def _ended(self, key: _Key, task: asyncio.Task[None]) -> None:
        del self._pulls[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            names = {"node": key[0], "load": key[1], "reason": str(error)}
            log.info("a node can't join an in-sync set before it has the file of a load", extra=names)


def marks_in_log(replica: HostedReplica) -> list[IngestMark] | None:
    """The marks of loads in the log of a replica that leads; None while the newest entries can't be read yet. Raises
    CORRUPT_DATA, STORAGE_FAILED.
    """
    replica.state.take_over_data()
    partition_log, applied = replica.log, replica.state.applied
    taken = [offset for offset in replica.data.loads.offsets.values() if partition_log.base < offset <= applied]
    entries = [partition_log.read(offset, offset, 1)[0] for offset in sorted(taken)]
    start = max(applied, partition_log.base) + 1
    while start <= partition_log.end:
        if start > (end := partition_log.readable(start, replica.state.durable)):
            return None
        found = partition_log.read(start, end, _READ_BYTES)
        entries += [entry for entry in found if is_mark(entry.body)]
        start += len(found)
    marks = [decode_entry(entry.body) for entry in entries]
    return [mark for mark in marks if isinstance(mark, IngestMark)]
