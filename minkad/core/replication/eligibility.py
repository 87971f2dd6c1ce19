"""The eligible replicas, beside an in-sync set that is too small for writes, as their leader sees them (KIP-966)."""

from collections.abc import Sequence

from minka.cluster.in_sync import eligible_replicas, has_everything
from minkad.core.replication.instructions import Level
from minkad.core.replication.node_state import NodeState
from minkad.core.replication.replica_state import ReplicaState


class Eligibility:
    """For one leadership. By the row a replica stays eligible; here its leader notes where it can't keep it so."""

    def __init__(self, node: NodeState, state: ReplicaState) -> None:
        self.lost: set[str] = set()  # nodes, in the isr or eligible, that have lost committed entries
        self.late: set[str] = set()  # nodes, in sync or not, that have not caught up for long
        self._node = node
        self._state = state

    def beside(self, isr: Sequence[str]) -> list[str]:
        """The nodes that have everything that is committed and aren't in this in-sync set."""
        return [n for n in has_everything(self._state.row) if n not in isr and not self.is_given_up(n)]

    def is_given_up(self, node: str) -> bool:
        """True if the node isn't, or is no longer, eligible: it has lost entries, or this leader can't wait for it."""
        if node in self.lost or node == self._node.id:
            return True
        return self.is_awaited and (node in self.late or self._node.view.is_absent(node))

    @property
    def is_awaited(self) -> bool:
        """True if this leader serves nothing until the eligible replicas, too, have all that may have been
        acknowledged. From then on it takes no write that they would have to have.
        """
        return self._state.high_watermark < self._state.ready_at and self._state.damage is None

    def proposed(self, isr: Sequence[str]) -> tuple[str, ...]:
        """The nodes to be eligible beside this in-sync set, which is about to be proposed."""
        if 0 < self._state.min_insync <= len(isr):
            return ()
        found = tuple(self.beside(isr))
        if given_up := [node for node in eligible_replicas(self._state.row) if node not in (*isr, *found)]:
            text = "replicas that had everything are given up; if the disks of those in sync are lost, they cannot lead"
            self._node.outbox.report(Level.WARNING, text, partition=self._state.id, nodes=given_up)
        return found
