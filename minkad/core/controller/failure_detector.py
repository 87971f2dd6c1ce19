"""The nodes that have not been heard for too long (HeartBeat and Lease, Patterns of Distributed Systems).

A verdict needs more than silence. Time in which the judge itself stood still doesn't count; a judge that hears nothing
of much of the cluster suspects itself first (Eureka's self-preservation, the zones of Kubernetes' node controller);
and a new judge gives every node the time to find it, and only then takes it as heard (KAFKA-18138).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

PATIENCE: Final = 5
FEW: Final = 3  # of fewer nodes, one is no large part


@dataclass(slots=True)
class FailureDetector:
    """Times are seconds of the active controller's monotonic clock.

    Nobody is failed before `clearances_end`: until then what former active controllers have granted may hold.
    `turn` is to be called every `tick` seconds.
    """

    timeout: float
    started_at: float
    clearances_end: float
    tick: float
    patience: int = PATIENCE  # times the timeout that one may be silent while much of the others is
    _heard: dict[str, float] = field(default_factory=dict)
    _since: float = field(init=False)  # those of whom nothing is known count as heard then
    _turned_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._turned_at = self.started_at
        self._since = self.started_at + self.timeout

    def turn(self, now: float) -> None:
        """The loop has its turn. As far as that comes late, nobody could be heard: it is no silence of theirs."""
        lost = now - self._turned_at - 2 * self.tick
        self._turned_at = now
        if lost > 0:
            self._since += lost
            self._heard = {node: min(at + lost, now) for node, at in self._heard.items()}

    def heard(self, node: str, at: float) -> None:
        """A heartbeat of this node has arrived, or it is known otherwise that it was there."""
        self._heard[node] = at

    def deadline(self, node: str) -> float:
        """When the node counts as failed if nothing is heard from it until then."""
        return max(self._heard.get(node, self._since) + self.timeout, self.clearances_end)

    def is_alive(self, node: str, now: float) -> bool:
        """Whether the node may still hold a clearance."""
        return now < self.deadline(node)

    def silent(self, others: Iterable[str], now: float) -> list[str]:
        """The nodes that are to be failed together, out of the other nodes that are up."""
        others = list(others)
        patience = (self.patience - 1) * self.timeout if self.suspects_itself(others, now) else 0.0
        return [node for node in others if now >= self.deadline(node) + patience]

    def suspects_itself(self, others: Collection[str], now: float) -> bool:
        """Whether more than half of the cluster, to which the judge belongs, has been quiet for half of the timeout.

        Those who fall silent at once cross the whole of it one after the other.
        """
        quiet = sum(now - self._heard.get(node, self._since) >= self.timeout / 2 for node in others)
        return len(others) + 1 >= FEW and quiet > (len(others) + 1) / 2

    def silence(self, node: str, now: float) -> float:
        """Seconds since the node was last heard, or since this controller began."""
        return max(0.0, now - self._heard.get(node, self.started_at))
