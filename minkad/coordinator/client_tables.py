"""The table for clients: they get all rows of the keyspaces that they use. Of a large keyspace by hash they get only
the rows that they ask for.
"""

import asyncio
import zlib
from array import array
from collections.abc import Callable, Mapping
from typing import Final

from minka.cluster.key_ranges import is_by_ranges
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import GetTableRequest, GetTableResponse
from minka.v1.cluster_pb2 import Keyspace, Partition
from minkad.coordinator.coordinator import Coordinator
from minkad.core.state import ROWS_A_PIECE, State, slices
from minkad.process.turns import turn

_COMPRESSED_BYTES: Final = 64 * 1024
_LEVEL: Final = 3  # reduces a table to a tenth, at 4 ms a megabyte; level 6 would take 12 ms

_Slots = frozenset[int] | None  # None: all


class ClientTables:
    """Answers GetTable from this node's copy of the table."""

    def __init__(self, coordinator: Coordinator, is_replayed: Callable[[], bool] = lambda: True) -> None:
        """`is_replayed`: True if this node has its table again after its start."""
        self._coordinator = coordinator
        self._is_replayed = is_replayed
        # For each keyspace by hash, the ids of its partitions by slot; these ids never change.
        self._ids: Final[dict[int, array[int]]] = {}

    async def answer(self, request: GetTableRequest) -> GetTableResponse:
        """The rows that the caller lacks, compressed if they are many and the caller accepts that. Raises
        NO_CONTROLLER.
        """
        if not self._is_replayed():
            raise MinkaError(Code.NO_CONTROLLER, "this node has just started, and reads its table: ask again")
        response = await self._rows(request)
        if not request.accepts_zlib or response.ByteSize() < _COMPRESSED_BYTES:
            return response
        return GetTableResponse(zlib=await asyncio.to_thread(_compressed, response))

    async def _rows(self, request: GetTableRequest) -> GetTableResponse:
        """The rows that the caller lacks: nothing if it has the present version; the changes since its version if this
        node still knows them; else all rows that the caller wants.
        """
        state, response = self._coordinator.state, GetTableResponse()
        if request.known_version and request.known_version == state.version:
            return response
        wanted = _wanted(state, request)
        if request.known_version and request.known_cluster == state.cluster.id:
            found = state.table_since_in_pieces(request.known_version)
            if found is not None:
                response.changes.CopyFrom(found[0])
                for some in found[1]:
                    kept = some if wanted is None else [row for row in some if _is_wanted(row, wanted)]
                    response.changes.partitions.extend(kept)
                    await turn()
                return response
        if wanted is not None and None not in wanted.values():
            response.table.CopyFrom(state.table_without_partitions())
            for some in slices(await self._of_slots(state, wanted), ROWS_A_PIECE):
                response.table.partitions.extend(some)
                await turn()
            return response
        without_rows, pieces = state.table_in_pieces(None if wanted is None else list(wanted))
        response.table.CopyFrom(without_rows)
        for some in pieces:
            kept = some if wanted is None else [row for row in some if _is_wanted(row, wanted)]
            response.table.partitions.extend(kept)
            await turn()
        return response

    async def _of_slots(self, state: State, wanted: Mapping[int, _Slots]) -> list[Partition]:
        """The rows of these slots, without a look at the other rows of their keyspaces."""
        rows = []
        for keyspace_id, slots in wanted.items():
            if slots:
                ids = self._ids.get(keyspace_id) or await self._find_ids(state, state.keyspaces[keyspace_id])
                rows += [state.partitions[ids[slot]] for slot in sorted(slots) if slot < len(ids)]
        return rows

    async def _find_ids(self, state: State, keyspace: Keyspace) -> "array[int]":
        found = array("L", bytes(array("L").itemsize * keyspace.partition_count))
        for some in slices(state.partitions.of(keyspace.id), ROWS_A_PIECE):
            for row in some:
                found[row.slot] = row.id
            await turn()
        self._ids[keyspace.id] = found
        return found


def _compressed(response: GetTableResponse) -> bytes:
    return zlib.compress(response.SerializeToString(), _LEVEL)


def _wanted(state: State, request: GetTableRequest) -> Mapping[int, _Slots] | None:
    """The slots that the caller wants, by keyspace; None if it wants everything. Leaves out unknown names."""
    if not request.keyspaces:
        return None
    by_name = {one.name: one for one in state.keyspaces.values() if one.id not in state.incomplete}
    wanted: dict[int, _Slots] = {}
    for rows in request.keyspaces:
        if (keyspace := by_name.get(rows.keyspace)) is not None:
            some = rows.whole_up_to and not is_by_ranges(keyspace) and keyspace.partition_count > rows.whole_up_to
            wanted[keyspace.id] = frozenset(rows.slots) if some else None
    return wanted


def _is_wanted(row: Partition, wanted: Mapping[int, _Slots]) -> bool:
    if row.keyspace_id not in wanted:
        return False
    slots = wanted[row.keyspace_id]
    return slots is None or row.slot in slots
