"""The partitions that a node lists, page by page."""

import threading
from collections.abc import Iterator, Sequence
from typing import Final, Self

import grpc

from minka.engine.grpc_calls import error_from_call
from minka.engine.sync_channels import Channels
from minka.errors import Code, MinkaError
from minka.v1 import admin_pb2


class Partitions:
    """The partitions that a node lists; they can be read only once. `status` is the cluster's status without
    partitions. Once all partitions are read, `matching` has the number of partitions for each keyspace and state.
    `whole` returns all partitions at once.
    """

    def __init__(
        self,
        address: str,
        call: "grpc._CallIterator[admin_pb2.ListPartitionsResponse]",
        channels: Channels,
        first_s: float,
        timeout: float,
    ) -> None:
        """The first answer may take `first_s` seconds, and each other answer `timeout` seconds. The time that the
        reader takes between two answers isn't limited.
        """
        self.status = admin_pb2.GetStatusResponse()
        self.matching: Sequence[admin_pb2.MatchingCount] = ()
        self._address: Final = address
        self._call: Final = call
        self._channels: Final = channels
        self._first_s: Final = first_s
        self._timeout: Final = timeout

    def begun(self) -> Self:
        """Wait until the node has answered, and return this object. Raises MinkaError, as all methods here do."""
        first = self._next(self._first_s)
        if first is not None:
            self.status = first.status
        return self

    def __iter__(self) -> Iterator[admin_pb2.ListPartitionsResponse]:
        while (page := self._next(self._timeout)) is not None:
            if page.partitions:
                yield page
            else:
                self.matching = page.matching

    def whole(self) -> admin_pb2.GetStatusResponse:
        """Read all partitions, and return the status with them, their sizes and their damaged replicas."""
        for page in self:
            self.status.table.partitions.extend(page.partitions)
            self.status.replicas.extend(page.replicas)
            self.status.damaged.extend(page.damaged)
        return self.status

    def close(self) -> None:
        """End the call; no more partitions come."""
        self._call.cancel()

    def _next(self, timeout: float) -> admin_pb2.ListPartitionsResponse | None:
        self._channels.check_open()
        # Each page has its own timer: a deadline for the whole call could pass while somebody pages through the output.
        overdue = threading.Event()

        def give_up() -> None:
            overdue.set()
            self._call.cancel()

        timer = threading.Timer(timeout, give_up)
        timer.daemon = True
        timer.start()
        try:
            return next(self._call, None)
        except grpc.RpcError as error:
            self._channels.check_open()
            if overdue.is_set():
                text = f"{self._address} did not answer in time"
                raise MinkaError(Code.DEADLINE_EXCEEDED, text, address=self._address) from error
            raise error_from_call(error, self._address, repeatable=True) from error
        finally:
            timer.cancel()
