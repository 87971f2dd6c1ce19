"""The base of synchronous clients that ask many nodes: the nodes' addresses, and the nodes of each partition."""

import time
from collections.abc import Sequence
from random import Random
from types import TracebackType
from typing import Final, Self

import grpc

from minka.admin.control import Control
from minka.engine.grpc_calls import error_from_call
from minka.engine.retry import delay_s
from minka.engine.sync_channels import Channels
from minka.errors import Code, MinkaError
from minka.tls import Tls
from minka.v1.cluster_pb2 import Keyspace, Partition, PartitionTable

_RNG: Final = Random()


class Nodes:
    """A client's view of the nodes, for one thread. Only `keyspace` and `refresh` fetch the table."""

    def __init__(self, endpoints: Sequence[str], tls: Tls | None) -> None:
        self._control: Final = Control(endpoints, tls=tls)
        self._channels: Final = Channels(tls)
        self.table = PartitionTable()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._control.close()
        self._channels.close()

    def keyspace(self, name: str) -> Keyspace:
        """Fetch the table, and return the keyspace's row. Raises UNKNOWN_KEYSPACE, and the errors of `Control`."""
        self.table = self._control.table()
        for keyspace in self.table.keyspaces:
            if keyspace.name == name:
                return keyspace
        names = ", ".join(sorted(keyspace.name for keyspace in self.table.keyspaces)) or "none yet"
        raise MinkaError(Code.UNKNOWN_KEYSPACE, f"no keyspace is named {name!r}; there are: {names}")

    def partitions(self, keyspace: Keyspace) -> list[Partition]:
        """The rows of the keyspace's partitions, in the order of slots or ranges."""
        rows = [row for row in self.table.partitions if row.keyspace_id == keyspace.id and row.replicas]
        return sorted(rows, key=lambda row: (row.start_key, row.slot))

    def refresh(self) -> None:
        """Fetch the table again; if no node answers, the old table stays."""
        try:
            self.table = self._control.table()
        except MinkaError as error:
            if not may_work_later(error):
                raise

    def channel(self, node: str) -> grpc.Channel:
        """The channel to the node of this id. Raises UNREACHABLE if the table has no address for the node."""
        address = next((one.address for one in self.table.nodes if one.id == node), "")
        if not address:
            raise MinkaError(Code.UNREACHABLE, f"the table has no address of {node or 'a leader'}")
        return self._channels.to(address)


def error_of(caught: grpc.RpcError | MinkaError, node: str) -> MinkaError:
    """The MinkaError for a failed call to a node. Such a call only reads, so the client may repeat it."""
    return caught if isinstance(caught, MinkaError) else error_from_call(caught, node, repeatable=True)


def may_work_later(error: MinkaError) -> bool:
    """True if the same call may succeed in a moment."""
    return error.code.info.retriable or error.code is Code.DEADLINE_EXCEEDED


def pause(tries: int) -> None:
    """Wait before the next try; the wait grows with each try."""
    time.sleep(delay_s(tries, _RNG))
