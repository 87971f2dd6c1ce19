"""The failure detector finds the nodes that have been silent for too long (HeartBeat and Lease, Patterns of Distributed
Systems).

The detector doesn't fail each silent node. Time in which the controller itself stood still doesn't count. If much of
the cluster is silent, the controller suspects itself first (Eureka's self-preservation, the zones of Kubernetes' node
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

    Call `turn` every `tick` seconds.
    """

    timeout: float
    started_at: float
    clearances_end: float  # no node fails before, since clearances of former active controllers may hold until then
    tick: float
    patience: int = PATIENCE  # while much of the cluster is silent, a node fails only after this number of timeouts
    chance: float | None = None  # seconds since `started_at` in which a node has to be heard first; None: two timeouts
    _heard: dict[str, float] = field(default_factory=dict)  # by node: when it was last heard
    _since: float = field(init=False)  # nodes that were never heard from count as heard at this time
    _turned_at: float = field(init=False)  # the last call of `turn`

    def __post_init__(self) -> None:
        self._turned_at = self.started_at
        chance = 2 * self.timeout if self.chance is None else self.chance
        self._since = self.started_at + chance - self.timeout

    def turn(self, now: float) -> None:
        """Note that the loop runs. If the loop is late, it couldn't hear any node meanwhile, so this time doesn't count
        as silence.
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
        """True if more than half of the cluster has been silent for half of the timeout: with this node and four
        others, if three are silent. After the whole timeout it would be too late: nodes that fall silent together reach
        the timeout one after the other, so the first would fail before the last counts as silent.
        """
        quiet = sum(now - self._heard.get(node, self._since) >= self.timeout / 2 for node in others)
        return len(others) + 1 >= FEW and quiet > (len(others) + 1) / 2

    def hears_nothing_of_some(self, others: Iterable[str], now: float) -> bool:
        """True if a verdict about one of these nodes may be near."""
        return any(now - self._heard.get(node, self._since) >= self.timeout / 2 for node in others)

    def silence(self, node: str, now: float) -> float:
        """Seconds since the node was last heard from, or since this controller began."""
        return max(0.0, now - self._heard.get(node, self.started_at))
