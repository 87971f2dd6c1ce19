"""Builds the next row of a partition."""

from collections.abc import Sequence
from typing import Self

from minka.cluster.in_sync import eligible_replicas
from minka.v1.cluster_pb2 import (
    PARTITION_STATE_ASSIGNED,
    PARTITION_STATE_OFFLINE,
    PARTITION_STATE_ONLINE,
    Partition,
)
from minkad.core.controller.selectors import Selection


class PartitionChange:
    """A copy of a row, changed step by step. `row` then updates the fields that depend on others: a node in sync is no
    longer joining, only a node in sync can succeed the leader, and only a replica that stays can be eligible. (In
    Kafka's KRaft: PartitionChangeBuilder.)
    """

    def __init__(self, partition: Partition) -> None:
        self._row = Partition()
        self._row.CopyFrom(partition)
        if partition.eligible:
            self._row.eligible[:] = eligible_replicas(partition)

    def row(self) -> Partition:
        """The row, at the next partition_epoch."""
        row = self._row
        row.adding_replicas[:] = [node for node in row.adding_replicas if node not in row.isr]
        if row.successor == row.leader or row.successor not in row.isr:
            row.successor = ""
        row.partition_epoch += 1
        if row.eligible:
            row.eligible[:] = [
                n for n in row.replicas if n in row.eligible and n not in (*row.isr, *row.removing_replicas)
            ]
        row.eligible_at = row.partition_epoch if row.eligible else 0
        return row

    # The leader

    def elect(self, selection: Selection | None) -> Self:
        """→ OnlinePartition with the selected node; → OfflinePartition if no node can lead. An OfflinePartition keeps
        its isr: each replica in it has everything.
        """
        row = self._row
        if selection is not None:
            elect(row, selection)
        else:
            row.leader, row.state = "", PARTITION_STATE_OFFLINE
        row.successor = ""
        return self

    def confirm_leader(self) -> Self:
        """ASSIGNED → ONLINE: the leader knows that it leads."""
        self._row.state = PARTITION_STATE_ONLINE
        return self

    def appoint(self, successor: str) -> Self:
        """The leader is to hand over gracefully."""
        self._row.successor = successor
        return self

    def keep_leader(self) -> Self:
        """The leader stays; it has no successor."""
        self._row.successor = ""
        return self

    def hand_over_to(self, leader: str) -> Self:
        """The successor leads, at a new epoch."""
        row = self._row
        row.leader = leader
        row.leader_epoch += 1
        row.generation += bool(row.target_replicas)
        row.successor = ""
        row.state = PARTITION_STATE_ONLINE
        return self

    # The in-sync set

    def set_isr(self, isr: Sequence[str]) -> Self:
        """These nodes are in sync."""
        self._row.isr[:] = isr
        return self

    def leave_isr(self, node: str) -> Self:
        """The node's replica, which isn't the leader's, may lack committed entries."""
        assert node != self._row.leader, self._row
        self.keep_eligible([other for other in self._row.eligible if other != node])
        return self.set_isr([other for other in self._row.isr if other != node])

    def keep_eligible(self, nodes: Sequence[str]) -> Self:
        """Of the replicas outside of the isr, these have everything that is committed."""
        self._row.eligible[:] = nodes
        return self

    def readmit_eligible(self) -> Self:
        """The eligible replicas join the isr again; the next leader removes the absent ones."""
        return self.set_isr([*self._row.isr, *self._row.eligible]).keep_eligible([])

    # The replicas: the steps of onPartitionReassignment

    def reassign_to(self, target: Sequence[str]) -> Self:
        """Step 1: AR = OAR + RAR."""
        row = self._row
        original = list(row.replicas)
        row.replicas[:] = dict.fromkeys([*original, *target])
        row.target_replicas[:] = target
        row.adding_replicas[:] = [node for node in target if node not in original]
        return self

    def remove_old_replicas(self) -> Self:
        """Steps 8 and 9: the replicas in OAR and not in RAR are to be deleted."""
        row = self._row
        return self._remove([node for node in row.replicas if node not in row.target_replicas])

    def assign_target(self) -> Self:
        """Step 10: AR = RAR."""
        self._row.replicas[:] = self._row.target_replicas
        self._row.ClearField("target_replicas")
        return self

    def go_back_to(self, original: Sequence[str]) -> Self:
        """AR = OAR again; the copies of the new replicas are to be deleted."""
        row = self._row
        self._remove([node for node in row.replicas if node not in original])
        row.replicas[:] = original
        row.ClearField("adding_replicas")
        row.ClearField("target_replicas")
        return self

    def note_deleted(self, node: str) -> Self:
        """The node no longer has anything of the partition."""
        self._row.removing_replicas.remove(node)
        return self

    def _remove(self, nodes: Sequence[str]) -> Self:
        row = self._row
        row.removing_replicas.extend(node for node in nodes if node not in row.removing_replicas)
        return self.set_isr([node for node in row.isr if node not in nodes])

    # The keys

    def split_at(self, key: bytes, child_id: int) -> Self:
        """The keys from `key` on are the child's."""
        row = self._row
        row.end_key, row.split_to, row.splitting = key, child_id, True
        row.ClearField("eligible")  # it couldn't make the child
        row.generation += 1
        return self

    def end_split(self) -> Self:
        """The whole in-sync set has made the child."""
        self._row.ClearField("splitting")
        return self

    def merge_from(self, right_id: int) -> Self:
        """The partition is to get the range of its neighbour on the right."""
        self._row.merge_from = right_id
        return self

    def merge_into(self, left_id: int) -> Self:
        """The partition is to become a part of its neighbour on the left."""
        self._row.merge_into = left_id
        return self

    def give_up_merge(self) -> Self:
        """The partition is no longer to be merged."""
        self._row.ClearField("merge_from")
        self._row.ClearField("merge_into")
        return self

    def grow_to(self, end_key: bytes, generation: int) -> Self:
        """The partition has its neighbour's range. Because of the new leader_epoch, followers learn again how far the
        leader is: only now, the neighbour's data, which came through the log, belongs to their range.
        """
        row = self._row
        row.end_key, row.generation = end_key, generation
        row.leader_epoch += 1
        row.ClearField("merge_from")
        row.ClearField("eligible")
        return self

    def become_part(self, generation: int) -> Self:
        """The partition's keys are its neighbour's now, and its copies are to be deleted."""
        row = self._row
        row.generation = generation
        row.removing_replicas[:] = dict.fromkeys([*row.removing_replicas, *row.replicas])
        row.state, row.leader = PARTITION_STATE_OFFLINE, ""
        del row.replicas[:], row.isr[:]
        return self


def election(partition: Partition, selection: Selection | None) -> list[Partition]:
    """The rows by which the selected node leads, or no node does. An eligible node needs two rows: by the first it
    joins the isr, by the second it leads.
    """
    if selection is None or selection.unclean or not partition.isr or selection.leader in partition.isr:
        return [PartitionChange(partition).elect(selection).row()]
    waiting = PartitionChange(partition).elect(None).readmit_eligible().row()
    return [waiting, PartitionChange(waiting).elect(selection).row()]


def elect(row: Partition, selection: Selection) -> None:
    """The selected node is to lead at a new leader_epoch. The partition is ASSIGNED until the node has acknowledged
    this.
    """
    row.leader = selection.leader
    row.leader_epoch += 1
    row.isr[:] = selection.isr
    row.unclean_elections += selection.unclean
    if selection.unclean:
        row.ClearField("eligible")
    row.state = PARTITION_STATE_ASSIGNED
