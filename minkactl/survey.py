"""Asks all nodes at once about themselves, and takes the table of the one that knows most.

This needs no leader, and a node that hangs delays nothing: one that has not answered after `ANSWER_S` counts as silent.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final

from minka.admin.control import Control, Described
from minka.engine.grpc_calls import blames_certificate
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import DescribeNodeResponse, GetStatusResponse, UnservedOnNode
from minka.v1.cluster_pb2 import Node, NodeState

HEARD_LATELY_MS: Final = 1000  # several heartbeats: a node that was heard in this time works, at least for some
ANSWER_S: Final = 1.0  # for all of it, if the table takes no longer
CONTROLLER_S: Final = 0.5  # for the active controller to be found; then the newest table of the others will do
LAST_ASKED_S: Final = 0.4  # for those that only the table names


def is_known(status: GetStatusResponse) -> bool:
    """True if the table is from the active controller, and not only from a node's memory."""
    return status.from_controller and status.has_clearance


def unconfirmed(status: GetStatusResponse) -> str:
    """A sentence for people if the table is only from a node's memory, else ""."""
    if is_known(status):
        return ""
    return f"Not known to be so: {status.served_by} remembers it, and no active controller that a quorum has confirmed \
says so. Why: minkactl status"


@dataclass(frozen=True, slots=True)
class Report:
    """A node's answer, or why there is none, for people."""

    answer: DescribeNodeResponse | None
    failure: str = ""
    refused: bool = False  # its machine is there, and no process listens: it is not running
    certificate: bool = False  # it shows one that this side refuses


@dataclass(frozen=True, slots=True)
class Survey:
    """The reports of the nodes at `taken_ms` (Unix milliseconds). A node that was not asked has no report."""

    status: GetStatusResponse
    reports: Mapping[str, Report] = field(default_factory=dict)  # by node id
    taken_ms: int = 0
    unreadable: int | None = None  # partitions of which no node would answer a stale read; None: not known

    @property
    def known(self) -> bool:
        """True if the table is from the active controller, which a quorum has confirmed a moment ago."""
        return is_known(self.status)

    @property
    def heartbeat_ages_ms(self) -> dict[str, int]:
        """The time since the active controller heard each node; nodes that it has not heard yet are missing."""
        nodes = self.status.nodes
        return {node.node_id: node.heartbeat_age_ms for node in nodes if node.HasField("heartbeat_age_ms")}

    @property
    def clocks_ms(self) -> dict[str, int]:
        """By how much the clocks of running nodes are ahead of one that nobody sets, as far as nodes have said so."""
        up = {node.id for node in self.status.table.nodes if is_up(node)}
        nodes = self.status.nodes
        return {n.node_id: n.clock_ahead_ms for n in nodes if n.HasField("clock_ahead_ms") and n.node_id in up}

    @property
    def remembered_ms(self) -> int | None:
        """The time until which the table was the active controller's; None if it still is, or if no node knows."""
        report = self.reports.get(self.status.served_by)
        if self.known or report is None or report.answer is None:
            return None
        if report.answer.HasField("clearance_lapsed_ms"):
            return self.taken_ms - report.answer.clearance_lapsed_ms
        return self.taken_ms if report.answer.has_clearance else None

    def last_heard_ms(self, node: Node) -> int | None:
        """When a node that answers last knew that this one, which doesn't, was there; None if no node says."""
        if self.known and is_up(node):
            age = self.heartbeat_ages_ms.get(node.id)
            return None if age is None else self.taken_ms - age
        answers = [report.answer for report in self.reports.values() if report.answer is not None]
        voters = [voter for answer in answers for voter in answer.voters if voter.node == node.id]
        times = [self.taken_ms - voter.heard_ms for voter in voters if voter.HasField("heard_ms")]
        if not is_up(node):
            times.append(node.state_since_ms)
        elif self.remembered_ms is not None:
            times.append(self.remembered_ms)
        return max(times, default=None)

    def is_heard(self, node: str) -> bool:
        """True if the node's process runs: it answers here; or the active controller has just heard it, and its machine
        doesn't refuse the connection.
        """
        report = self.reports.get(node)
        if report is not None and (report.answer is not None or report.refused):
            return report.answer is not None
        return self.heartbeat_ages_ms.get(node, HEARD_LATELY_MS) < HEARD_LATELY_MS

    def unserved_on(self, node: str) -> UnservedOnNode:
        """The node's partitions that aren't served although their state doesn't say so."""
        found = self.status.summary.unserved.nodes
        return next((one for one in found if one.node_id == node), UnservedOnNode(node_id=node))

    def answer(self, node: str) -> DescribeNodeResponse | None:
        """The node's answer."""
        report = self.reports.get(node)
        return report.answer if report is not None else None


def is_up(node: Node) -> bool:
    """True if the node is up, by the table."""
    return node.state in (NodeState.NODE_STATE_LIVE, NodeState.NODE_STATE_DRAINING)


def survey(control: Control, meanwhile: Callable[[], object] = lambda: None) -> Survey:
    """Ask every node. `meanwhile` is called once while the first of them make up their answers. Raises MinkaError if no
    endpoint leads to the table.
    """
    asking = _Asking(control)
    try:
        asking.ask(control.endpoints)
        meanwhile()
        status = asking.status()
        asking.ask((node.address for node in status.table.nodes), LAST_ASKED_S)
        asking.wait()
        reports = asking.reports(status)
        return Survey(status, reports, time.time_ns() // 1_000_000, _unreadable(control, status, reports))
    finally:
        asking.give_up()


def _unreadable(control: Control, status: GetStatusResponse, reports: Mapping[str, Report]) -> int | None:
    """The number of partitions whose in-sync replicas are all on nodes that don't answer, or that answer no stale read,
    by the node that gave the status. A node that has just started doesn't know the age of any replica.
    """
    silent = [node.id for node in status.table.nodes if _answers_no_stale(reports[node.id].answer)]
    if not silent or not status.summary.partitions:
        return 0
    address = next((node.address for node in status.table.nodes if node.id == status.served_by), "")
    try:
        return control.summary_at(address, silent).summary.only_on_silent
    except MinkaError:
        return None


def _answers_no_stale(answer: DescribeNodeResponse | None) -> bool:
    return answer is None or (answer.HasField("stale_reads") and not answer.stale_reads)


class _Asking:
    """The calls under way, by address."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._calls: dict[str, Described] = {}
        self._done: SimpleQueue[Described] = SimpleQueue()
        self._pending = 0
        self._answers: dict[str, DescribeNodeResponse] = {}
        self._started = time.monotonic()
        self._answer_s = min(ANSWER_S, control.timeout)
        self._deadline = self._started + self._answer_s

    def ask(self, addresses: Iterable[str], at_least_s: float = 0.0) -> None:
        """Ask those that have not been asked yet."""
        new = [address for address in dict.fromkeys(addresses) if address and address not in self._calls]
        for address in new:
            self._pending += 1
            self._calls[address] = self._control.describe_node(address, self._answer_s, self._done.put)
        if new:
            self._deadline = max(self._deadline, time.monotonic() + at_least_s)

    def status(self) -> GetStatusResponse:
        """The view of the active controller, or else of the node with the newest table."""
        while self._pending and not (best := self._best())[0]:
            enough = self._started + (CONTROLLER_S if best[1] else self._answer_s)
            if not self._wait_for_one(enough):
                break
        address = self._best()[1]
        if address:
            try:
                return self._control.summary_at(address)
            except MinkaError:
                pass  # it has just died: another one may know
        return self._control.summary()

    def _best(self) -> tuple[bool, str]:
        """The node that knows most: True if it is the active controller, and its address; "" when none has answered."""
        ranks = [
            (answer.is_controller and answer.has_clearance, answer.is_controller, answer.applied_index, address)
            for address, answer in self._answers.items()
        ]
        if not ranks:
            return False, ""
        best = max(ranks)
        return best[0], best[3]

    def wait(self) -> None:
        """Wait for all of them, until the deadline."""
        while self._pending and self._wait_for_one(self._deadline):
            pass

    def _wait_for_one(self, until: float) -> bool:
        """Take one result, and ask the nodes that it names; return False if none came in time."""
        try:
            done = self._done.get(timeout=max(until - time.monotonic(), 0))
        except Empty:
            return False
        self._pending -= 1
        try:
            answer = self._answers[done.address] = done.answer()
        except MinkaError:
            return True
        self.ask(voter.address for voter in answer.voters)
        return True

    def reports(self, status: GetStatusResponse) -> dict[str, Report]:
        """The report of each node of the table, or of each voter while there is no table yet."""
        addresses = {node.id: node.address for node in status.table.nodes}
        for answer in self._answers.values():
            addresses |= {voter.node: voter.address for voter in answer.voters if voter.node not in addresses}
        by_name = {answer.node: answer for answer in self._answers.values()}
        named = dict.fromkeys((*addresses, *status.coordinator.voters))
        cluster = status.table.cluster.id
        return {node: self._report(by_name.get(node), addresses.get(node, ""), cluster) for node in named}

    def _report(self, answer: DescribeNodeResponse | None, address: str, cluster: str) -> Report:
        if answer is not None and answer.cluster_id in ("", cluster):
            return Report(answer)
        call = self._calls.get(address)
        if answer is None and call is not None:
            try:
                other = call.answer()
            except MinkaError as error:
                return failed(error, self._answer_s)
            return Report(None, f"{other.node} answers at its address")
        return Report(None, "it is in another cluster" if answer else "no address is known")

    def give_up(self) -> None:
        """Stop waiting."""
        for call in self._calls.values():
            call.call.cancel()


def failed(error: MinkaError, answer_s: float) -> Report:
    """The report of a node whose call failed, after `answer_s` seconds at most."""
    # Without the address, which stands beside it.
    text = error.message.removeprefix(f"{error.details.get('address', '')}: ")
    # gRPC says this if the kernel has accepted the connection, but the process says nothing on it.
    if error.code is Code.DEADLINE_EXCEEDED or text.startswith("connection attempt timed out"):
        return Report(None, f"no answer within {answer_s:g} s")
    refused = "Connection refused" in text
    return Report(None, "connection refused" if refused else text, refused, blames_certificate(error))
