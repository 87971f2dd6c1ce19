"""For tests that imitate a node: computes the node's answers to requests for summaries and lists, from a status with
the whole table.
"""

from collections.abc import Collection, Iterator

from minka.v1.admin_pb2 import GetStatusResponse, ListPartitionsRequest, ListPartitionsResponse, TableSummary, Unserved
from minkad.core.partition_list import PartitionList
from minkad.core.state import State
from minkad.core.table_counts import TableCounts
from minkad.core.unserved import UnservedCounts


def summarized(whole: GetStatusResponse, silent: Collection[str] = ()) -> GetStatusResponse:
    """Return a copy of the status that has a summary instead of the partitions."""
    status = _without_partitions(whole)
    status.summary.CopyFrom(summary_of(whole))
    status.summary.only_on_silent = sum(set(row.isr) <= set(silent) for row in whole.table.partitions)
    return status


def summary_of(status: GetStatusResponse) -> TableSummary:
    """Compute the summary of the status's partitions."""
    counts, table = TableCounts(), status.table
    assert not list(counts.place({node.id: node.zone for node in table.nodes}))
    for row in table.partitions:
        counts.put(row.id, row)
    for stats in status.replicas:
        counts.put_size(stats.partition_id, stats.keys, stats.bytes)
    counts.settle({keyspace.id: keyspace for keyspace in table.keyspaces})
    summary = counts.summary(table.nodes, table.keyspaces)
    if status.from_controller:
        summary.unserved.CopyFrom(_unserved(status))
    return summary


def _unserved(status: GetStatusResponse) -> Unserved:
    found = UnservedCounts({node.id: node for node in status.table.nodes}, status.damaged)
    names = {keyspace.id: keyspace.name for keyspace in status.table.keyspaces}
    rows = {row.id: row for row in status.table.partitions}
    for row in rows.values():
        found.offline(row)
    for one in status.damaged:
        row = rows[one.partition_id]
        found.damaged(one, row, f"{names[row.keyspace_id]}/{row.slot}")
    return found.message()


def listed(whole: GetStatusResponse, request: ListPartitionsRequest) -> Iterator[ListPartitionsResponse]:
    """Yield the answers to a request for partitions: the status, then the partitions in pieces."""
    state = State()
    state.keyspaces = {keyspace.id: keyspace for keyspace in whole.table.keyspaces}
    for row in whole.table.partitions:
        state.partitions.put(row)
    yield ListPartitionsResponse(status=_without_partitions(whole))
    found = PartitionList(state, request.filter, request.limit)
    for some in found.pieces():
        ids = {row.id for row in some}
        yield ListPartitionsResponse(
            partitions=some,
            replicas=[one for one in whole.replicas if one.partition_id in ids],
            damaged=[one for one in whole.damaged if one.partition_id in ids],
        )
    yield ListPartitionsResponse(matching=found.counts())


def _without_partitions(whole: GetStatusResponse) -> GetStatusResponse:
    status = GetStatusResponse()
    status.CopyFrom(whole)
    del status.table.partitions[:], status.replicas[:], status.damaged[:]
    return status
