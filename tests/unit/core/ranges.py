"""Helpers for keyspaces by ranges that a controller creates, splits and merges."""

from collections.abc import Sequence

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import HashFunction, Operation, Partition
from minka.v1.coordinator_pb2 import FinishMergeRequest, FinishSplitRequest, ProposeSplitRequest
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.merges import Merge
from minkad.core.controller.splits import Split
from minkad.core.state import range_of
from tests.unit.core.model import Controller

NODES = ("athens", "byzantium", "cyrene")


def by_ranges(c: Controller, points: Sequence[bytes] = (), replicas: int = 1, name: str = "authors") -> list[Partition]:
    """Create a keyspace by ranges; returns its rows, in the order of the ranges."""
    c.run(CreateKeyspace(name, 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, replicas, split_points=points))
    c.deliver()
    return rows_of(c, name)


def rows_of(c: Controller, name: str = "authors") -> list[Partition]:
    keyspace = c.state.keyspace_named(name)
    assert keyspace is not None
    return sorted((p for p in c.state.partitions.values() if p.keyspace_id == keyspace.id), key=lambda p: p.start_key)


def ranges_of(rows: Sequence[Partition]) -> list[str]:
    return [str(range_of(row)) for row in rows]


def three(replicas: int = 1, points: Sequence[bytes] = ()) -> Controller:
    c = Controller()
    c.register(*NODES)
    by_ranges(c, points, replicas)
    return c


def split(c: Controller, *keys: bytes) -> Operation:
    """Begin a split, and let the controller do its work."""
    c.run(Split("authors", keys, "tester", "test"))
    operation = max(c.state.operations)
    c.schedule()
    return c.state.operations[operation]


def merge(c: Controller, *keys: bytes, sizes: dict[int, int] | None = None) -> Operation:
    """Begin a merge, and let the controller do its work."""
    c.run(Merge("authors", keys, "tester", "test", sizes or {}))
    operation = max(c.state.operations)
    c.schedule()
    return c.state.operations[operation]


def propose(c: Controller, row: Partition, key: bytes, *, node: str = "", generation: int = 0) -> Code | None:
    """Propose a split as the partition's leader does; returns the code of the refusal, or None."""
    try:
        c.run(
            ProposeSplitRequest(
                node_id=node or row.leader, partition_id=row.id, generation=generation or row.generation, key=key
            )
        )
    except MinkaError as refusal:
        return refusal.code
    return None


def finish_merges(c: Controller) -> None:
    """Let the leader of each merge report that the left partition has everything of the right one."""
    for row in list(c.state.partitions.values()):
        right = c.state.partitions.get(row.merge_from)
        if right is not None and row.leader and row.leader == right.leader:
            c.run(
                FinishMergeRequest(
                    node_id=row.leader,
                    partition_id=row.id,
                    partition_epoch=row.partition_epoch,
                    merged_id=right.id,
                    merged_epoch=right.partition_epoch,
                )
            )
    c.schedule()


def finish(c: Controller) -> None:
    """Let every leader report the end of its splits and merges."""
    finish_merges(c)
    for row in list(c.state.partitions.values()):
        if row.splitting and not row.split_to and row.leader:
            c.run(
                FinishSplitRequest(
                    node_id=row.leader,
                    partition_id=row.id,
                    leader_epoch=row.leader_epoch,
                    partition_epoch=row.partition_epoch,
                )
            )
    c.schedule()
