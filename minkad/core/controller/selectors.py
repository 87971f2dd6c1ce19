"""Selectors of the next leader (Kafka Controller Internals: the partition leader selectors).

Each selector looks at a row and at the nodes that are up, and returns the elected leader and the in-sync set; None if
no replica can be elected. A node that is up is "live". A node that is being drained is elected only if no other node
can be, and by some selectors never.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from minka.cluster.in_sync import eligible_replicas, has_everything
from minka.v1.cluster_pb2 import NodeState, Partition
from minkad.core.state import State, is_up


@dataclass(frozen=True, slots=True)
class Live:
    """The nodes that are up. Some of them (`draining`) lead only if no other node can: they are being drained, or their
    disks are low.
    """

    up: frozenset[str]
    draining: frozenset[str] = frozenset()

    @classmethod
    def of(cls, state: State, low_disks: Collection[str] = ()) -> "Live":
        """The nodes that are up, by the table."""
        up = [node for node in state.nodes.values() if is_up(node)]
        draining = [n.id for n in up if n.state == NodeState.NODE_STATE_DRAINING or n.id in low_disks]
        return cls(frozenset(node.id for node in up), frozenset(draining))

    def without(self, *nodes: str) -> "Live":
        """The same without these nodes."""
        return Live(self.up - {*nodes}, self.draining - {*nodes})

    def only(self, nodes: Collection[str]) -> "Live":
        """The same with only these nodes."""
        return Live(self.up.intersection(nodes), self.draining.intersection(nodes))

    def first(self, candidates: Iterable[str]) -> str | None:
        """The first candidate that is up and isn't being drained; if there is none, the first that is up."""
        up = [node for node in candidates if node in self.up]
        return next((node for node in up if node not in self.draining), up[0] if up else None)

    def stays(self, node: str) -> bool:
        """True if the node is up and not being drained."""
        return node in self.up and node not in self.draining


@dataclass(frozen=True, slots=True)
class Selection:
    """The result of an election. `unclean`: the leader was not in sync, so acknowledged writes may be lost."""

    leader: str
    isr: tuple[str, ...]
    unclean: bool = False


def offline_partition_leader_selector(row: Partition, live: Live, *, allow_unclean: bool) -> Selection | None:
    """New leader: a live replica in the isr. If there is none, a live eligible replica; then all eligible replicas are
    in the isr again. If there is none either, with `allow_unclean`, any live replica that isn't being added; then this
    replica is alone in the isr.
    """
    assigned = _assigned(row)
    in_sync = [node for node in assigned if node in row.isr]
    leader = live.first(in_sync)
    if leader is not None:
        return Selection(leader, tuple(row.isr))
    eligible = eligible_replicas(row)
    if eligible and (leader := live.first(node for node in assigned if node in eligible)) is not None:
        return Selection(leader, tuple(has_everything(row)))
    complete = [node for node in assigned if node not in row.adding_replicas]
    if not allow_unclean or (leader := live.first(complete)) is None:
        return None
    return Selection(leader, (leader,), unclean=bool(row.isr))


def new_partition_leader_selector(row: Partition, live: Live) -> Selection | None:
    """The first live replica, and all live replicas as the isr (NewPartition → OnlinePartition)."""
    leader = live.first(row.replicas)
    return None if leader is None else Selection(leader, tuple(node for node in row.replicas if node in live.up))


def reassigned_partition_leader_selector(row: Partition, live: Live) -> Selection | None:
    """New leader: a live reassigned replica that is in sync. New isr: the current one."""
    leader = live.first(node for node in row.target_replicas if node in row.isr)
    return None if leader is None else Selection(leader, tuple(row.isr))


def preferred_replica_partition_leader_selector(row: Partition, live: Live) -> Selection | None:
    """New leader: the first assigned replica, if it is in sync and stays. New isr: the current one."""
    preferred = preferred_leader(row)
    if preferred not in row.isr or not live.stays(preferred):
        return None
    return Selection(preferred, tuple(row.isr))


def controlled_shutdown_leader_selector(row: Partition, live: Live, shutting_down: Collection[str]) -> Selection | None:
    """New leader: a live replica in the isr that is not being shut down. New isr: the current one without such
    nodes.
    """
    candidates = [n for n in _assigned(row) if n in row.isr and n not in shutting_down and live.stays(n)]
    if not candidates:
        return None
    return Selection(candidates[0], tuple(node for node in row.isr if node not in shutting_down))


def preferred_leader(row: Partition) -> str:
    """The first assigned replica; during a reassignment, the first of RAR."""
    return (row.target_replicas or row.replicas)[0]


def _assigned(row: Partition) -> list[str]:
    """The replicas in their order; replicas that stay come before replicas that a reassignment will remove."""
    staying = [node for node in row.target_replicas if node not in row.removing_replicas]
    return list(dict.fromkeys([*staying, *(n for n in row.replicas if n not in row.removing_replicas)]))
