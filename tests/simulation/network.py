"""The simulated network. It decides which messages arrive, when, and how often."""

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

Link = tuple[int, int]  # from, to


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """Probabilities of faults, and delays in the unit of the world's clock."""

    delay: float  # the mean delay of a message
    loss: float = 0.0
    duplication: float = 0.0
    straggling: float = 0.0  # the share of messages that take up to 50 times as long, so that others overtake them


class Network:
    """Directed links between nodes. A blocked link loses all messages."""

    def __init__(self, rng: random.Random, profile: NetworkProfile) -> None:
        self.profile = profile
        self._random = rng.random
        self._blocked: set[Link] = set()
        self._calm = False

    def deliveries(self, sender: int, to: int) -> list[float]:
        """Draw the delays after which a message arrives: none if the message is lost, two if it is duplicated."""
        if (sender, to) in self._blocked:
            return []
        profile, draw = self.profile, self._random
        if profile.loss and draw() < profile.loss:
            return []
        delays = [self.delay()]
        if profile.duplication and draw() < profile.duplication:
            delays.append(self.delay() * 5)
        return delays

    def delay(self) -> float:
        """The delay of one message."""
        if self._calm:
            return self.profile.delay
        delay = self.profile.delay * (0.5 + self._random())
        if self.profile.straggling and self._random() < self.profile.straggling:
            delay *= 50 * self._random()
        return delay

    def connected(self, sender: int, to: int) -> bool:
        """True if the link isn't blocked."""
        return (sender, to) not in self._blocked

    def calm(self) -> None:
        """From now on, deliver each message on an open link once, in time and in order, like a stream of gRPC."""
        self._calm = True
        self.profile = NetworkProfile(self.profile.delay)

    # Partitions

    def heal(self) -> set[Link]:
        """Unblock all links; returns the links that were blocked."""
        healed, self._blocked = self._blocked, set()
        return healed

    def block(self, links: Iterable[Link]) -> None:
        """Block these links. Links that are blocked already stay blocked."""
        self._blocked.update(links)


def partition(rng: random.Random, nodes: Sequence[int]) -> tuple[str, list[Link]]:
    """Choose a random partition of the network; returns its name and the links to block."""
    shuffled = list(nodes)
    rng.shuffle(shuffled)
    one, rest = shuffled[0], shuffled[1:]
    cut = rng.randint(1, max(1, len(shuffled) - 1))
    kind = rng.choice(("isolate", "deaf", "mute", "halves", "one-way halves", "ring", "bridge", "link"))
    match kind:
        case "isolate":
            links = [link for other in rest for link in ((one, other), (other, one))]
        case "deaf":
            links = [(other, one) for other in rest]
        case "mute":
            links = [(one, other) for other in rest]
        case "halves":
            links = between(shuffled[:cut], shuffled[cut:], both=True)
        case "one-way halves":
            links = between(shuffled[:cut], shuffled[cut:], both=False)
        case "ring":
            links = _all_but_neighbours(shuffled)
        case "bridge":  # `one` reaches both halves; the halves don't reach each other
            links = between(rest[: len(rest) // 2], rest[len(rest) // 2 :], both=True)
        case _:
            links = [(one, rest[0])] if rest else []
    return f"{kind} {' '.join(map(str, shuffled))} cut {cut}", links


def between(left: Collection[int], right: Collection[int], *, both: bool) -> list[Link]:
    """The links from each node of `left` to each node of `right`; if `both`, also the links from `right` to `left`."""
    links = [(a, b) for a in sorted(left) for b in sorted(right)]
    return links + [(b, a) for a, b in links] if both else links


def _all_but_neighbours(ring: Sequence[int]) -> list[Link]:
    count = len(ring)
    return [(a, b) for i, a in enumerate(ring) for j, b in enumerate(ring) if (i - j) % count not in (0, 1, count - 1)]
