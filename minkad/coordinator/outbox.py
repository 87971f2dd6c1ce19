"""Sends a node the rows of its partitions, until the node has acknowledged them."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from minka.errors import MinkaError
from minka.v1.cluster_pb2 import Partition, PartitionState
from minka.v1.coordinator_pb2 import UpdateReplicasRequest, UpdateReplicasResponse
from minkad.core.controller.row_answers import ReplicaReport
from minkad.process import tasks
from minkad.process.turns import turn

log: Final = logging.getLogger(__name__)

ROWS_A_REQUEST: Final = 256
PAIRS_A_REQUEST: Final = 1024  # pairs of a partition's id and epoch
REQUESTS_IN_FLIGHT: Final = 3
_FEW: Final = 4  # this many rows don't wait for a turn if one of them makes the node lead, since clients wait for it
BACKOFF_FIRST: Final = 0.02  # seconds
BACKOFF_CAP: Final = 2.0
_ONLINE: Final = PartitionState.PARTITION_STATE_ONLINE

Send = Callable[[UpdateReplicasRequest], Awaitable[UpdateReplicasResponse]]
Report = Callable[[ReplicaReport], None]


class NodeOutbox:
    """The rows that one process of a node has yet to acknowledge. The outbox reads a row when it sends it, so it sends
    only the newest rows. For a row that the process may already have, it sends only the id and the epoch, unless the
    controller waits for the answer.

    Several requests may be under way, so that a slow deletion doesn't hold up a hand-over. If one request overtakes
    another, the node ignores the older row.
    """

    def __init__(
        self,
        node: str,
        incarnation: str,
        controller_term: int,
        row: Callable[[int], Partition | None],
        send: Send,
        report: Report,
        jitter: random.Random,
        failed: tasks.Failed,
    ) -> None:
        self.node = node
        self._failed_for_good = failed
        self.incarnation = incarnation
        self._term = controller_term
        self._row = row
        self._send = send
        self._report = report
        self._jitter = jitter
        self._pending: dict[int, bool] = {}  # by partition: True if the node may know the row already
        self._wake = asyncio.Event()
        self._in_flight: dict[asyncio.Task[None], None] = {}  # in the order of sending
        self._tries: dict[int, int] = {}  # by partition: failed tries since the last success
        self._retries: list[asyncio.TimerHandle] = []
        self._task = tasks.start(self._run(), f"outbox of {node}", failed)

    @property
    def unacknowledged(self) -> int:
        """The number of partitions that wait to be sent; those being sent don't count."""
        return len(self._pending)

    def add(self, partition_ids: Iterable[int]) -> None:
        """The rows of these partitions have changed: send them."""
        self._pending.update(dict.fromkeys(partition_ids, False))
        self._wake.set()

    def ask(self, partition_ids: Iterable[int]) -> None:
        """Ask the node which of these partitions' rows it has, and send it the others."""
        self._pending = dict.fromkeys(partition_ids, True) | self._pending
        self._wake.set()

    def close(self) -> None:
        """Stop trying: the process is gone, or this controller is no longer active."""
        self._task.cancel()
        for task in self._in_flight:
            task.cancel()
        for retry in self._retries:
            retry.cancel()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending and len(self._in_flight) < REQUESTS_IN_FLIGHT:
                task = tasks.start(self._deliver(self._take()), f"delivery to {self.node}", self._failed_for_good)
                self._in_flight[task] = None
                task.add_done_callback(self._delivered)

    def _take(self) -> dict[int, bool]:
        """Take as many pending partitions as fit into one request."""
        batch: dict[int, bool] = {}
        free = PAIRS_A_REQUEST
        for partition_id, may_know in self._pending.items():
            batch[partition_id] = may_know
            free -= 1 if may_know else PAIRS_A_REQUEST // ROWS_A_REQUEST
            if free <= 0:
                break
        for partition_id in batch:
            del self._pending[partition_id]
        return batch

    def _delivered(self, task: asyncio.Task[None]) -> None:
        del self._in_flight[task]
        self._wake.set()

    async def _deliver(self, batch: dict[int, bool]) -> None:
        if len(batch) > _FEW or not any(self._is_to_lead(row) for row in map(self._row, batch) if row is not None):
            await turn()
        request = UpdateReplicasRequest(controller_term=self._term, incarnation=self.incarnation)
        awaited: dict[int, int] = {}  # by partition: the epoch of the row that the controller waits for
        for partition_id, may_know in batch.items():
            row = self._row(partition_id)
            if row is None:
                continue
            is_awaited = self._is_awaited(row)
            if is_awaited:
                awaited[partition_id] = row.partition_epoch
            if may_know and not is_awaited:
                request.known_ids.append(partition_id)
                request.known_epochs.append(row.partition_epoch)
            else:
                request.partitions.append(row)
        try:
            response = await self._send(request)
        except MinkaError as error:
            self._failed(batch, str(error))
            return
        unknown = set(response.unknown_ids)
        if response.failed:
            self._failed({one.partition_id: False for one in response.failed}, response.failed[0].error)
        self._succeeded(response.hosted_ids)
        self._succeeded(response.deleted_ids)
        self._succeeded(id_ for id_ in request.known_ids if id_ not in unknown)
        if unknown:
            self.add(unknown)
        # Answers that the controller doesn't wait for have no effect. A row that has changed meanwhile is sent again.
        hosted = zip(response.hosted_ids, response.hosted_epochs, strict=True)
        confirmed = [(id_, epoch) for id_, epoch in hosted if awaited.get(id_) == epoch]
        if confirmed or response.deleted_ids:
            self._report(ReplicaReport(self.node, confirmed, list(response.deleted_ids)))

    def _is_awaited(self, row: Partition) -> bool:
        """True if the controller waits for the node's answer to the row."""
        return self._is_to_lead(row) or self.node in row.removing_replicas

    def _is_to_lead(self, row: Partition) -> bool:
        return row.leader == self.node and row.state != _ONLINE

    def _failed(self, partition_ids: Mapping[int, bool], reason: str) -> None:
        """Try again later. Only the first failure and the recovery are logged."""
        if not self._tries:
            log.warning("can't send the node its rows, trying again", extra={"to": self.node, "reason": reason})
        for partition_id in partition_ids:
            self._tries[partition_id] = self._tries.get(partition_id, 0) + 1
        tries = max(self._tries[p] for p in partition_ids)
        delay = min(BACKOFF_CAP, BACKOFF_FIRST * 2.0 ** min(tries, 16)) * self._jitter.uniform(0.5, 1.0)
        self._retries = [r for r in self._retries if r.when() > asyncio.get_running_loop().time()]
        self._retries.append(asyncio.get_running_loop().call_later(delay, self._try_again, partition_ids))

    def _try_again(self, partition_ids: Mapping[int, bool]) -> None:
        self.ask(id_ for id_, may_know in partition_ids.items() if may_know)
        self.add(id_ for id_, may_know in partition_ids.items() if not may_know)

    def _succeeded(self, partition_ids: Iterable[int]) -> None:
        tries = [self._tries.pop(p) for p in partition_ids if p in self._tries]
        if tries and not self._tries:
            log.info("the node has its rows again", extra={"to": self.node, "tries": max(tries) + 1})
