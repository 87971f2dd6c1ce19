"""A synchronous client that reads the writes to a keyspace from the logs of its partitions.

The changes of a partition come in the order of its log. If a partition was split off from another one, its parent, then
the parent's log has the changes of its keys from before the split. Nodes keep `storage.change_retention_mib` of a log;
asking for older changes raises CHANGES_GONE.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Final

import grpc

from minka.bulk.node_addresses import Nodes, error_of, may_work_later, pause
from minka.errors import Code, MinkaError
from minka.tls import Tls
from minka.v1.changes_pb2 import ChangeBatch, ChangePosition, PositionsRequest, ReadChangesRequest
from minka.v1.changes_pb2_grpc import ChangesStub
from minka.v1.cluster_pb2 import Keyspace, Partition

_CALL_SECONDS: Final = 10.0


class ChangeClient(Nodes):
    """Reads the change feeds of a cluster, for one thread. `endpoints` are addresses host:port of some of the nodes.
    `timeout` is the most seconds that a partition may be without a leader that answers. All errors are `MinkaError`.
    `tls` is for a cluster with TLS; a mistake in its files raises INVALID_CONFIG.
    """

    def __init__(self, endpoints: Sequence[str], *, tls: Tls | None = None, timeout: float = 60.0) -> None:
        super().__init__(endpoints, tls)
        self._timeout: Final = timeout

    def positions(self, keyspace: Keyspace) -> dict[int, ChangePosition]:
        """The end of each partition's log as its leader has it, by the partition's id. All writes that were
        acknowledged before the call come before these ends. Raises PARTITION_OFFLINE or UNREACHABLE if a partition has
        no leader in time.
        """
        until, tries = time.monotonic() + self._timeout, 0
        while True:
            rows = self.partitions(keyspace)
            found: dict[int, ChangePosition] = {}
            error = None
            for node in {row.leader for row in rows}:
                try:
                    found.update(self._positions_at(node, [row for row in rows if row.leader == node]))
                except (grpc.RpcError, MinkaError) as caught:
                    error = error_of(caught, node)
                    if not may_work_later(error):
                        raise error from caught
            if len(found) == len(rows):
                return found
            if time.monotonic() > until:
                missing = [row.id for row in rows if row.id not in found]
                text = f"these partitions have no leader that answers: {missing[:10]}"
                raise error or MinkaError(Code.PARTITION_OFFLINE, text)
            tries += 1
            pause(tries)
            self.refresh()

    def _positions_at(self, node: str, rows: Sequence[Partition]) -> dict[int, ChangePosition]:
        request = PositionsRequest(partition_ids=[row.id for row in rows])
        answer = self._stub(node).Positions(request, timeout=_CALL_SECONDS)
        return {position.partition_id: position for position in answer.positions if position.is_leader}

    def read(self, partition_id: int, after: int, until: int) -> Iterator[ChangeBatch]:
        """The changes of a partition after the offset `after`, up to and including `until`, in batches. Raises
        CHANGES_GONE if no replica still has them.
        """
        while after < until:
            for batch in self._ask(
                ReadChangesRequest(partition_id=partition_id, after_offset=after, until_offset=until)
            ):
                yield batch
                after = max(after, batch.next_offset)

    def child_at(self, parent_id: int, after: int, child_id: int) -> int:
        """The offset in the parent's log, greater than `after`, at which the child was split off. Up to that offset,
        the parent's log has the changes of the child's keys. Raises CHANGES_GONE if no replica's log still has the
        split.
        """
        request = ReadChangesRequest(partition_id=parent_id, after_offset=after, find_child=child_id)
        for batch in self._ask(request):
            if batch.child_at:
                return batch.child_at
        text = f"partition {child_id} was split off from {parent_id} before offset {after}"
        raise MinkaError(Code.CHANGES_GONE, text)

    def _ask(self, request: ReadChangesRequest) -> Iterator[ChangeBatch]:
        """Yield the answers of one replica. This asks the leader first, then other replicas, whose logs may go back
        further. If a replica fails after its first answer, this ends without an error; the caller then asks again for
        the changes that are missing.
        """
        until, tries = time.monotonic() + self._timeout, 0
        gone: set[str] = set()
        while True:
            nodes = self._nodes_of(request.partition_id)
            node = nodes[tries % len(nodes)] if nodes else ""
            has_some = False
            try:
                for batch in self._stub(node).Read(request):
                    has_some = True
                    yield batch
                return
            except (grpc.RpcError, MinkaError) as caught:
                error = error_of(caught, node)
                if has_some:
                    return  # the caller asks for the rest
                if error.code is Code.CHANGES_GONE:
                    gone.add(node)
                elif not may_work_later(error) or time.monotonic() > until:
                    raise error from caught
                if nodes and gone.issuperset(nodes):
                    raise error from caught
            tries += 1
            if tries >= len(nodes):
                pause(tries)
                self.refresh()

    def _nodes_of(self, partition_id: int) -> list[str]:
        row = next((row for row in self.table.partitions if row.id == partition_id), None)
        if row is None or not row.replicas:
            text = f"partition {partition_id} is gone: it was merged into another one, or its keyspace is gone"
            raise MinkaError(Code.CHANGES_GONE, text)
        return [row.leader, *(node for node in row.replicas if node != row.leader)] if row.leader else [*row.replicas]

    def _stub(self, node: str) -> ChangesStub:
        return ChangesStub(self.channel(node))
