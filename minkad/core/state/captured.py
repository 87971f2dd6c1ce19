"""The state at one moment, for a snapshot: captured at once, and encoded on a thread while records change the state."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minka.v1.cluster_pb2 import Migration, StateSnapshot
from minkad.core.duties.duty_table import DutyState
from minkad.core.state.loads import LoadTable
from minkad.core.state.slices import slices

_ROWS_A_PIECE = 1000


@dataclass(frozen=True, slots=True)
class CapturedState:
    """The tables at one moment. They never change, so any thread may encode them."""

    first: StateSnapshot  # the small tables
    partitions: Sequence[bytes]  # encoded rows
    migrations: Sequence[Migration]
    duties: DutyState
    loads: LoadTable

    def pieces(self) -> Iterator[bytes]:
        """The snapshot in pieces; all pieces, concatenated, are one message. Equal states give equal bytes."""
        yield self.first.SerializeToString(deterministic=True)
        for rows in slices(self.partitions, _ROWS_A_PIECE):
            yield StateSnapshot(partitions=rows).SerializeToString(deterministic=True)
        for migrations in slices(self.migrations, _ROWS_A_PIECE):
            yield StateSnapshot(migrations=migrations).SerializeToString(deterministic=True)
        for tables in self.duties.pieces():
            yield StateSnapshot(duties=tables).SerializeToString(deterministic=True)
        for loads in self.loads.pieces():
            yield StateSnapshot(loads=loads).SerializeToString(deterministic=True)

    def encode(self) -> bytes:
        """The whole snapshot."""
        return b"".join(self.pieces())
