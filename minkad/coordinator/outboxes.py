"""Sends the nodes their rows, with an outbox for each process that is up."""

import random
from collections.abc import Awaitable, Callable, Collection

from minka.v1.coordinator_pb2 import UpdateReplicasRequest, UpdateReplicasResponse
from minkad.coordinator.outbox import NodeOutbox, Report
from minkad.core.state import ALL, Effect, NotifyShard, State, is_up
from minkad.process import tasks
from minkad.process.turns import turn

UpdateReplicas = Callable[[str, UpdateReplicasRequest], Awaitable[UpdateReplicasResponse]]


class Outboxes:
    """The outboxes of one term. They call `report` with each answer of a node that has an effect."""

    def __init__(
        self,
        committed: State,
        term: int,
        update_replicas: UpdateReplicas,
        report: Report,
        jitter: random.Random,
        failed: tasks.Failed,
    ) -> None:
        self._committed = committed
        self._term = term
        self._update_replicas = update_replicas
        self._report = report
        self._jitter = jitter
        self._failed = failed
        self._of: dict[str, NodeOutbox] = {}

    async def ask_all(self) -> None:
        """Ask each node that is up which of its rows it has: a new controller doesn't know this."""
        for name, partition_ids in list(self._committed.partitions.copies.items()):
            if is_up(self._committed.nodes.get(name)):
                self._outbox(name).ask(partition_ids)
                await turn()

    def carry_out(self, effects: Collection[Effect]) -> None:
        """Send rows to the nodes that are up. Other nodes get theirs when they register. Shards are told by their
        nodes.
        """
        told: dict[str, list[int]] = {}
        for effect in effects:
            if isinstance(effect, NotifyShard):
                continue
            told.setdefault(effect.node, []).append(effect.partition_id)
        for name, partition_ids in told.items():
            node, outbox = self._committed.nodes.get(name), self._of.get(name)
            if outbox is not None and (node is None or not is_up(node) or node.incarnation != outbox.incarnation):
                self._of.pop(name).close()
            if is_up(self._committed.nodes.get(name)):
                self._outbox(name).add(id_ for id_ in partition_ids if id_ != ALL)
                if ALL in partition_ids:
                    self._outbox(name).ask(self._committed.partitions.copies.get(name, ()))

    def _outbox(self, node: str) -> NodeOutbox:
        """The outbox of the node's registered process. A process that isn't registered yet gets no rows: when it
        registers, other nodes lead the partitions of the node's former process.
        """
        if node not in self._of:
            self._of[node] = NodeOutbox(
                node,
                self._committed.nodes[node].incarnation,
                self._term,
                self._committed.row,
                lambda request: self._update_replicas(node, request),
                self._report,
                self._jitter,
                self._failed,
            )
        return self._of[node]

    def close(self) -> None:
        """Send nothing from here on."""
        for outbox in self._of.values():
            outbox.close()
