"""A follower gets the files of loads before it joins an in-sync set.

A follower that catches up through the log has the marks of loads, but perhaps not yet their files. If the nodes with
the files went then, this follower would lead without a way to the rows of the loads.
"""

import asyncio
import logging
from collections import defaultdict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from minka.errors import MinkaError
from minka.v1.load_api_pb2 import PullFileRequest
from minka.v1.loads_pb2 import LoadFile, LoadState
from minkad.core.replication.instructions import BringLoadFiles
from minkad.core.replication.node import Node
from minkad.process import tasks
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.surroundings import LoadSources, Surroundings

log: Final = logging.getLogger(__name__)

_PULLS_AT_ONCE: Final = 64  # by one node
_WAIT_SECONDS: Final = 1.0  # then others pull; the node goes on fetching the file, and the leader asks again later
_MOST_REASONS: Final = 8
_WITHOUT_MARK: Final = (LoadState.LOAD_STATE_STAGING, LoadState.LOAD_STATE_ABORTED)


@dataclass(frozen=True, slots=True)
class _Told:
    """What the log says about a follower: the last reasons why it couldn't join, since it last had all files."""

    leader_epoch: int
    reasons: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_REASONS))


class LoadFiles:
    """For the loop's thread, at the leader."""

    def __init__(self, around: Surroundings, node: Node[HostedReplica]) -> None:
        self._node = node
        self._sources = around.loads
        self._clock = around.clock
        self._slots = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(_PULLS_AT_ONCE))  # by node
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: dict[tuple[int, str], _Told] = {}  # by partition, and node

    async def close(self) -> None:
        """Give up the pulls under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def bring(self, instruction: BringLoadFiles) -> None:
        """Carry the instruction out. The files of this node tell which marks its log may have."""
        sources, partition_id = self._sources, instruction.progress.state.id
        files = _with_marks(sources, partition_id) if sources is not None else []
        if sources is None or not files:
            self._brought(instruction, has_all=True)
            return
        name = f"files of loads of {partition_id} for {instruction.progress.node_id}"
        task = tasks.start(self._bring(sources, files, instruction), name, partial(self._broke, partition_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bring(
        self, sources: LoadSources, files: list[tuple[int, LoadFile]], instruction: BringLoadFiles
    ) -> None:
        node_id = instruction.progress.node_id
        for number, file in files:
            try:
                async with self._slots[node_id], asyncio.timeout(_WAIT_SECONDS):
                    await sources.pull(node_id, PullFileRequest(load_number=number, file=file))
            except TimeoutError:
                late = f"isn't there and checked after {_WAIT_SECONDS:g} s; the node goes on with it"
                self._tell(instruction, f"{file.name} of load {number} {late}")
                self._brought(instruction, has_all=False)
                return
            except MinkaError as error:
                self._tell(instruction, str(error))
                self._brought(instruction, has_all=False)
                return
        self._brought(instruction, has_all=True)

    def _tell(self, instruction: BringLoadFiles, reason: str) -> None:
        """Log once why a node can't join, since the leader tries once a second."""
        progress = instruction.progress
        key = progress.state.id, progress.node_id
        told = self._told.get(key)
        if told is None or told.leader_epoch != progress.leader_epoch:
            self._told = {one: said for one, said in self._told.items() if one[0] in self._node.replicas}
            told = self._told[key] = _Told(progress.leader_epoch)
        if reason not in told.reasons:
            told.reasons.append(reason)
            names = {"node": progress.node_id, "partition": progress.state.id, "reason": reason}
            log.info("a node can't join an in-sync set before it has the files of loads", extra=names)

    def _broke(self, partition_id: int, error: BaseException) -> None:
        if (replica := self._node.replicas.get(partition_id)) is not None:
            replica.broke(error)

    def _brought(self, instruction: BringLoadFiles, *, has_all: bool) -> None:
        if has_all:
            self._told.pop((instruction.progress.state.id, instruction.progress.node_id), None)
        self._node.load_files_brought(instruction, self._clock(), has_all=has_all)


def _with_marks(sources: LoadSources, partition_id: int) -> list[tuple[int, LoadFile]]:
    rows = sources.table.state.loads.rows
    files = sources.spool.files_for(partition_id)
    return [(n, file) for n, file in files if n not in rows or rows[n].state not in _WITHOUT_MARK]
