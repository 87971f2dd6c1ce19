"""Waiting for changes of partitions on this node."""

import asyncio


class PartitionWaits:
    """A wait ends when the partition's row has changed, or its replica began or stopped serving. For the loop's
    thread.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[None]] = {}  # by partition

    def changed(self, partition_id: int) -> asyncio.Future[None]:
        """A future that is done at the next `notify`. Others wait for the same future, so wait with asyncio.wait: it
        doesn't cancel the future.
        """
        future = self._waiting.get(partition_id)
        if future is None:
            future = self._waiting[partition_id] = asyncio.get_running_loop().create_future()
        return future

    def notify(self, partition_id: int) -> None:
        """The partition has changed."""
        future = self._waiting.pop(partition_id, None)
        if future is not None and not future.done():
            future.set_result(None)

    def notify_all(self) -> None:
        """All partitions have changed."""
        for partition_id in list(self._waiting):
            self.notify(partition_id)
