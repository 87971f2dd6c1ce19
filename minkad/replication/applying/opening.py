"""Opens the data of replicas in the background, since it takes milliseconds, and tells `Node`."""

import asyncio
import logging
from typing import Final

from minka.errors import Code, MinkaError
from minkad.core.replication.instructions import OpenData
from minkad.core.replication.node import Node
from minkad.process import tasks
from minkad.process.failpoints import failpoint
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.surroundings import Surroundings

log: Final = logging.getLogger(__name__)


class Opening:
    """For the loop's thread. Opens a replica's data once, even if several callers ask for it."""

    def __init__(self, around: Surroundings, node: Node[HostedReplica]) -> None:
        self._node = node
        self._fail = around.log_db.fail
        self._clock = around.clock
        self._under_way: dict[int, asyncio.Task[MinkaError | None]] = {}  # by partition
        self._closed = False

    def instructed(self, instruction: OpenData) -> None:
        """Carry out the instruction."""
        if (replica := self._node.replicas.get(instruction.partition_id)) is not None:
            self.begin(replica)

    def begin(self, replica: HostedReplica) -> None:
        """Open the replica's data soon."""
        if replica.id in self._under_way or self._closed:
            return
        task = tasks.start(self._open(replica), f"opening the data of {replica.id}", replica.broke)
        self._under_way[replica.id] = task
        task.add_done_callback(lambda _: self._under_way.pop(replica.id))

    async def wait(self, replica: HostedReplica) -> None:
        """Return once the replica's data is open, or found unusable. Raises STORAGE_FAILED, SHUTTING_DOWN."""
        self.begin(replica)
        task = self._under_way.get(replica.id)
        if task is not None:
            await asyncio.wait([task])
        if task is None or task.cancelled():
            raise MinkaError(Code.SHUTTING_DOWN, "the node is stopping")
        if task.exception() is not None:
            return  # the replica is condemned
        if (failure := task.result()) is not None and failure.code is Code.STORAGE_FAILED:
            raise failure

    async def close(self) -> None:
        """Stop what is under way, and open nothing from now on."""
        self._closed = True
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def _open(self, replica: HostedReplica) -> MinkaError | None:
        failure: MinkaError | None = None
        try:
            await self.open_data(replica)
        except MinkaError as error:
            failure = error
        except Exception as error:
            log.exception("the data could not be opened", extra={"partition": replica.id})
            replica.broke(error)
        if self._node.replicas.get(replica.id) is not replica:
            return failure
        try:
            if failure is not None and failure.code is Code.STORAGE_FAILED:
                log.error("data can't be opened", extra={"partition": replica.id, "reason": str(failure)})
                if not self._node.data_failed(replica, failure, self._clock()):
                    self._fail(failure)
            else:  # the data is open or condemned; or another task replaces it, and does the rest
                self._node.data_opened(replica, self._clock())
        except MinkaError as error:
            self._fail(error)
        return failure

    @staticmethod
    @failpoint("replica.open")
    async def open_data(replica: HostedReplica) -> None:
        replica.state.check_data()
        await replica.data.open()
