"""Finds nodes that send heartbeats and serve nothing: their data ports don't answer.

Clients, followers and the coordinator's log use the data port; heartbeats don't. So each node asks its own data port,
at the address that clients use, and the data ports of some other nodes. Its heartbeats name the ports that don't
answer. The majority of the other nodes that watch a port decide; the node itself doesn't count, since it may be unable
to reach its own address. In a cluster of two, the only watcher may have lost its own network, so a node that is up has
to agree.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Node, NodeState
from minka.v1.coordinator_pb2 import HeartbeatRequest
from minkad.core.controller.membership import process_of
from minkad.core.state import is_up

WATCHERS: Final = 3  # other nodes that watch a data port


def watched_by(nodes: Iterable[Node], own: str) -> list[Node]:
    """The nodes whose data ports the node `own` watches: itself, and the nodes before it by name, up to the third that
    is up. FAILED nodes are watched, too, so that their return is seen.
    """
    ring = sorted((node for node in nodes if node.data_address and _is_watched(node)), key=lambda node: node.id)
    at = next((number for number, node in enumerate(ring) if node.id == own), None)
    if at is None:
        return []
    found, up = [ring[at]], 0
    for node in reversed(ring[at + 1 :] + ring[:at]):
        if up == WATCHERS:
            break
        found.append(node)
        up += is_up(node)
    return found


def _is_watched(node: Node) -> bool:
    return is_up(node) or node.state == NodeState.NODE_STATE_FAILED


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The words of a data port's watchers, and the time since which most of them say that it doesn't answer."""

    reason: str
    since: float


@dataclass(frozen=True, slots=True)
class _Words:
    """The data ports that don't answer a watcher."""

    errors: Mapping[str, str]  # by node: the error that the watcher gets instead of an answer
    after: float  # the watcher has said it after this time


@dataclass(frozen=True, slots=True)
class _Answer:
    """The controller's answer to a heartbeat."""

    sequence: int
    at: float


@dataclass(slots=True)
class DataPortJudge:
    """Times are seconds of the active controller's monotonic clock.

    For `grace` seconds after a process has registered, it isn't judged: the watchers still speak of the process before.
    A watcher's words count while they are at most `grace` old. Without this limit, a controller that had lost its
    watchers for a while would judge by old words when they are back, before it hears their new ones. With a much
    shorter limit, a port would seem to answer whenever a heartbeat is late. Since the network may delay a heartbeat,
    its age counts from the answer that the watcher had got last when it sent the heartbeat. For example: the heartbeat
    that comes at 7.3 says that the watcher has the answer of 5.0, so its words may be 2.3 seconds old.
    """

    grace: float
    _said: dict[str, _Words] = field(default_factory=dict)  # by watcher that gets no answer from some port
    _answers: dict[str, deque[_Answer]] = field(default_factory=dict)  # by node: those that it may not have got
    _began: dict[str, float] = field(default_factory=dict)  # by node: when its process registered
    _silent: dict[str, Unanswered] = field(default_factory=dict)  # the nodes whose data ports don't answer
    _granted: dict[str, HeartbeatRequest] = field(default_factory=dict)  # by node: its last heartbeat with a clearance
    _withheld: dict[str, bool] = field(default_factory=dict)  # by node that gets no clearance: True if it has none
    _failed: dict[str, str] = field(default_factory=dict)  # by node: the process that failed because it served nothing
    _is_suspect: bool = False  # more than half of the nodes are silent, so the fault is elsewhere

    def note(self, request: HeartbeatRequest, now: float) -> None:
        """Note the data ports that don't answer a node, and the errors, by the node's heartbeat. The heartbeat is
        answered `now`.
        """
        watcher, answers = request.node_id, self._answers.setdefault(request.node_id, deque())
        if answers and request.sequence < answers[-1].sequence:
            return  # it comes late, by a stream that has ended
        while answers and answers[0].sequence < request.answered_sequence:
            answers.popleft()
        if not request.unanswered:
            self._said.pop(watcher, None)
        elif answers and answers[0].sequence == request.answered_sequence:
            self._said[watcher] = _Words({one.node_id: one.reason for one in request.unanswered}, answers[0].at)
        while answers and answers[0].at < now - self.grace:
            answers.popleft()
        answers.append(_Answer(request.sequence, now))

    def began(self, node: str, now: float) -> None:
        """A process of the node has registered."""
        self._began[node] = now
        self._answers.pop(node, None)
        self._withheld.pop(node, None)
        self._failed.pop(node, None)

    def turn(self, nodes: Mapping[str, Node], now: float) -> Collection[str]:
        """Judge by the watchers' words. `nodes`: the table's. Returns the nodes whose data ports don't answer."""
        if not self._said and not self._silent:
            return ()
        self._said = {watcher: said for watcher, said in self._said.items() if watcher in nodes}
        accused: dict[str, dict[str, str]] = {}  # by node and watcher
        for watcher, words in self._said.items():
            if is_up(nodes.get(watcher)) and now - words.after <= self.grace:
                for name, reason in words.errors.items():
                    accused.setdefault(name, {})[watcher] = reason
        up = sum(map(is_up, nodes.values()))
        found: dict[str, Unanswered] = {}
        for name, by in accused.items():
            node, is_new = nodes.get(name), now < self._began.get(name, float("-inf")) + self.grace
            if node is None or is_new or not _is_silent(node, by, up):
                continue
            old = self._silent.get(name)
            found[name] = Unanswered(_told(node, by), old.since if old is not None else now)
        self._silent = found
        self._is_suspect = 2 * sum(is_up(nodes[name]) for name in found) > up
        return found.keys()

    def unanswered(self, node: str) -> Unanswered | None:
        """The problem of the node's data port; None if it has none."""
        return self._silent.get(node)

    def withheld(self, node: str) -> str:
        """The reason, in a sentence, why the node gets no clearance; "" if it may get one. While more than half of the
        nodes are silent, the fault is elsewhere, and nobody could take over.
        """
        found = self._silent.get(node)
        return found.reason if found is not None and not self._is_suspect else ""

    def granted_to(self, request: HeartbeatRequest) -> None:
        """A heartbeat is answered with a clearance."""
        if request.sequence >= self._last_granted(request):
            self._granted[request.node_id] = request
        self._withheld.pop(request.node_id, None)

    def withheld_from(self, request: HeartbeatRequest) -> None:
        """A heartbeat is answered without a clearance. The node may say that it has no clearance while an answer that
        grants one is on its way. So its word counts only once it has taken in all granted clearances.
        """
        has_taken_all = request.answered_sequence >= self._last_granted(request)
        self._withheld[request.node_id] = request.without_clearance and has_taken_all

    def _last_granted(self, request: HeartbeatRequest) -> int:
        """The sequence number of the last heartbeat of the same process that was granted a clearance."""
        last = self._granted.get(request.node_id)
        return last.sequence if last is not None and last.incarnation == request.incarnation else 0

    def has_given_up(self, node: str) -> bool:
        """True if the node can be failed at once: it serves nothing, has no clearance, and gets none."""
        return self._withheld.get(node, False) and bool(self.withheld(node))

    def failed(self, node: Node) -> str:
        """The node fails now. Returns the reason if it is heard but serves nothing; "" if it is silent."""
        reason = self.withheld(node.id) if node.id in self._withheld else ""
        if reason:
            self._failed[node.id] = process_of(node)
        return reason

    def refuse_unserving(self, node: Node) -> None:
        """Raises NOT_SERVING for a process that failed because it served nothing, until its data port answers. Another
        process of the node may serve, since it listens again.
        """
        is_same = self._failed.get(node.id) == process_of(node)
        if is_same and (reason := self.withheld(node.id)):
            raise MinkaError(Code.NOT_SERVING, f"{node.id}: {reason}", node=node.id)


def _is_silent(node: Node, by: Mapping[str, str], up: int) -> bool:
    """True if a data port counts as dead by the words of its watchers. A node that FAILED says nothing itself. Yet the
    majority decides about it, too; otherwise the node would register, and fail again.
    """
    others = min(WATCHERS, up - is_up(node))
    if others == 1 and is_up(node) and node.id not in by:
        return False
    return 2 * len(by.keys() - {node.id}) > others


def _told(node: Node, by: Mapping[str, str]) -> str:
    watchers = [name for name in sorted(by) if name != node.id]
    if node.id in by:
        watchers.append("the node itself")
    who = f"{', '.join(watchers[:-1])} and {watchers[-1]}" if len(watchers) > 1 else watchers[0]
    reasons = " or ".join(sorted(set(by.values())))
    return f"its data port {node.data_address} does not answer {who} ({reasons})"
