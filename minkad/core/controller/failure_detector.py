"""The failure detector finds the nodes that have been silent for too long (HeartBeat and Lease, Patterns of Distributed
Systems).

Silence alone is not enough. Time in which the controller itself stood still doesn't count. A controller that hears
nothing from much of the cluster suspects itself first (Eureka's self-preservation, the zones of Kubernetes' node
controller). A new controller gives every node time to find it before the timeout begins (KAFKA-18138).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

PATIENCE: Final = 5
FEW: Final = 3  # in a smaller cluster, one silent node doesn't make the controller suspect itself


@dataclass(slots=True)
class FailureDetector:
    """Times are seconds of the active controller's monotonic clock.

    Nodes are failed only after `clearances_end`: until then clearances of former active controllers may hold. Call
    `turn` every `tick` seconds. A node that was never heard from has `chance` seconds since `started_at` to appear; by
    default, twice the timeout.
    """

    timeout: float
    started_at: float
    clearances_end: float
    tick: float
    patience: int = PATIENCE  # timeouts for which a node may be silent while much of the cluster is
    chance: float | None = None
    _heard: dict[str, float] = field(default_factory=dict)
    _since: float = field(init=False)  # nodes that were never heard from count as heard at this time
    _turned_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._turned_at = self.started_at
        chance = 2 * self.timeout if self.chance is None else self.chance
        self._since = self.started_at + chance - self.timeout

    def turn(self, now: float) -> None:
        """Note that the loop runs. If it runs late, no node could be heard meanwhile, so this time doesn't count as
        silence.
        """
        lost = now - self._turned_at - 2 * self.tick
        self._turned_at = now
        if lost > 0:
            self._since += lost
            self._heard = {node: min(at + lost, now) for node, at in self._heard.items()}

    def heard(self, node: str, at: float) -> None:
        """A heartbeat of this node has arrived, or something else shows that the node was up at `at`."""
        self._heard[node] = at

    def has_heard(self, node: str) -> bool:
        """True if the node was ever heard from."""
        return node in self._heard

    def deadline(self, node: str) -> float:
        """The time when the node counts as failed if nothing is heard from it before."""
        return max(self._heard.get(node, self._since) + self.timeout, self.clearances_end)

    def is_alive(self, node: str, now: float) -> bool:
        """True if the node may still hold a clearance."""
        return now < self.deadline(node)

    def silent(self, others: Iterable[str], now: float) -> list[str]:
        """The nodes that are to be failed together, among `others`, the other nodes that are up."""
        others = list(others)
        patience = (self.patience - 1) * self.timeout if self.suspects_itself(others, now) else 0.0
        return [node for node in others if now >= self.deadline(node) + patience]

    def suspects_itself(self, others: Collection[str], now: float) -> bool:
        """True if more than half of the cluster, this node included, has been silent for half of the timeout. The whole
        would be too long: nodes that fall silent together reach the whole timeout one after the other.
        """
        quiet = sum(now - self._heard.get(node, self._since) >= self.timeout / 2 for node in others)
        return len(others) + 1 >= FEW and quiet > (len(others) + 1) / 2

    def hears_nothing_of_some(self, others: Iterable[str], now: float) -> bool:
        """True if a verdict about one of these nodes may be near."""
        return any(now - self._heard.get(node, self._since) >= self.timeout / 2 for node in others)

    def silence(self, node: str, now: float) -> float:
        """Seconds since the node was last heard from, or since this controller began."""
        return max(0.0, now - self._heard.get(node, self.started_at))
