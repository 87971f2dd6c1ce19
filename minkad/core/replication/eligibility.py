"""The eligible replicas, beside an in-sync set that is too small for writes, as the leader sees them (KIP-966)."""

from collections.abc import Sequence

from minka.cluster.in_sync import eligible_replicas, has_everything
from minkad.core.replication.instructions import Level
from minkad.core.replication.replica_state import ReplicaState
from minkad.core.replication.shared_state import SharedState


class Eligibility:
    """For one leadership. The row says which replicas are eligible; the leader notes here which of them it gives up."""

    def __init__(self, shared: SharedState, state: ReplicaState) -> None:
        self.lost: set[str] = set()  # nodes, in sync or eligible, that have lost committed entries
        self.late: set[str] = set()  # nodes, in sync or not, that have lagged for longer than `lag_timeout`
        self._shared = shared
        self._state = state

    def beside(self, isr: Sequence[str]) -> list[str]:
        """The nodes outside of this in-sync set that have all committed entries."""
        return [n for n in has_everything(self._state.row) if n not in isr and not self.is_given_up(n)]

    def is_given_up(self, node: str) -> bool:
        """True if the node can't be eligible: it is the leader, has lost entries, or the leader can't wait for it."""
        if node in self.lost or node == self._shared.id:
            return True
        return self.is_awaited and (node in self.late or self._shared.view.is_absent(node))

    @property
    def is_awaited(self) -> bool:
        """True while this leader waits for the eligible replicas: it serves nothing until they, too, have all entries
        that a former leader may have acknowledged. Afterwards it takes no write while replicas are eligible, so they
        need no more entries.
        """
        return self._state.high_watermark < self._state.ready_at and self._state.damage is None

    def proposed(self, isr: Sequence[str]) -> tuple[str, ...]:
        """The nodes to propose as eligible beside the in-sync set `isr`: none if that is large enough for writes."""
        if 0 < self._state.min_insync <= len(isr):
            return ()
        found = tuple(self.beside(isr))
        if given_up := [node for node in eligible_replicas(self._state.row) if node not in (*isr, *found)]:
            text = "replicas that had everything are given up; if the disks of those in sync are lost, they cannot lead"
            self._shared.outbox.report(Level.WARNING, text, partition=self._state.id, nodes=given_up)
        return found
