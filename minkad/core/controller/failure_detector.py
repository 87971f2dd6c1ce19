"""Who has not been heard for too long (HeartBeat and Lease, Patterns of Distributed Systems)."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class FailureDetector:
    """Times are seconds of the active controller's monotonic clock.

    A new controller has granted nothing itself, but its predecessor may have: every node counts as heard at
    `started_at`, and nobody is failed before `grace` has passed since then.
    """

    timeout: float
    grace: float
    started_at: float
    _heard: dict[str, float] = field(default_factory=dict)

    def heard(self, node: str, now: float) -> None:
        """A heartbeat of this node has arrived."""
        self._heard[node] = now

    def forget(self, node: str) -> None:
        """The node has left."""
        self._heard.pop(node, None)

    def deadline(self, node: str) -> float:
        """When the node counts as failed if nothing is heard from it until then."""
        heard = self._heard.get(node)
        start = self.started_at + self.grace
        return start if heard is None else max(heard + self.timeout, start)

    def is_alive(self, node: str, now: float) -> bool:
        """Whether the node may still hold a clearance."""
        return now < self.deadline(node)

    def silence(self, node: str, now: float) -> float:
        """Seconds since the node was last heard, or since this controller began."""
        return now - self._heard.get(node, self.started_at)
