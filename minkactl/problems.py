"""The problems of a cluster: each is a sentence, the commands to type next, and what else can be done.

Its severity is `error` if something is not served, a node is gone, or that can't be known, so the cluster is not
healthy; else `warning`.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from minka.cluster.clocks import OFF_MS, of_most
from minka.v1.admin_pb2 import DamagedLeader
from minka.v1.cluster_pb2 import Node, NodeState
from minkactl import units
from minkactl.pages import Row
from minkactl.skew import skews
from minkactl.starting import clock_command, look_command, renew_command, start_command, stop_command
from minkactl.survey import HEARD_LATELY_MS, Survey, is_up
from minkactl.unclean import LOST, accept_loss
from minkactl.units import counted
from minkactl.zones import uneven, zone_rows

UNHEARD_MS: Final = 3000  # a running voter is heard several times within it, also while there is no leader
BEHIND_MS: Final = 3000  # a running node applies something within it while there is something to apply
MAX_NAMES: Final = 8
MAX_COMMANDS: Final = 4  # for one problem
_ACCEPT_LOSS: Final = f"for each of them, {accept_loss('NAME')}."
_IS_LOST: Final = f"no other whole copy is left, and no command brings it back: {LOST}."
_GONE: Final = (
    "If their machines are gone for good: start them on others with their data directories. Restore copies of those of "
    "all nodes together, or of none. No command does without (docs/operations.md, A quorum)."
)


def problems(asked: Survey) -> list[Row]:
    """All problems, the worst first."""
    found = _of_nodes(asked)
    if asked.known:
        found.offline_partitions()
        found.unconfirmed_leaders()
        found.not_in_sync()
        found.voters_in_one_zone()
        found.skewed()
    return found.rows


def node_problems(asked: Survey) -> list[Row]:
    """The problems of the nodes, the worst first."""
    return _of_nodes(asked).rows


def _of_nodes(asked: Survey) -> "_Problems":
    found = _Problems(asked)
    if asked.known:
        found.failed_nodes()
        found.silent_nodes()
        found.silent_data_ports()
        found.nodes_without_clearance()
        found.tables_behind()
        found.damaged_leaders()
        found.too_few_nodes()
        found.clocks()
    else:
        found.without_controller()
    return found


class _Problems:
    def __init__(self, asked: Survey) -> None:
        self.rows: list[Row] = []
        self._asked = asked
        self._status = asked.status
        self._nodes = {node.id: node for node in asked.status.table.nodes}
        self._counts = {counts.node_id: counts for counts in asked.status.summary.nodes}
        self._live = sum(node.state == NodeState.NODE_STATE_LIVE for node in self._nodes.values())
        self._up = sum(map(is_up, self._nodes.values()))
        self._reported = {one.node_id: one for one in asked.status.nodes}  # by the active controller
        self._unserved = asked.status.summary.unserved
        self._told: set[str] = set()  # nodes whose start is the next command already

    def _add(
        self,
        problem: str,
        commands: Iterable[str],
        *,
        nodes: Iterable[str] = (),
        note: str = "",
        otherwise: str = "",
        severity: str = "error",
    ) -> None:
        several = list(dict.fromkeys(commands))[:MAX_COMMANDS]
        row = {"severity": severity, "problem": problem, "nodes": list(nodes), "next": several}
        self.rows.append({**row, "note": note, "otherwise": otherwise})

    # Without an active controller

    def without_controller(self) -> None:
        """Say which voters are missing, and which of them have to be started."""
        voters = list(self._status.coordinator.voters)
        missing = [voter for voter in voters if self._asked.answer(voter) is None]
        leader, named = self._leader_unreached(), self._status.coordinator.controller
        if not self._status.table.cluster.id:
            self._not_founded(missing)
        elif leader:
            self._unreached_controller(leader)
        elif 2 * (len(voters) - len(missing)) <= len(voters):
            self._no_quorum(voters, missing)
        elif named and self._asked.answer(named) is not None:
            self._add(f"{named} is becoming the active controller; no quorum has confirmed it yet", [_WATCH])
        else:
            self._no_leader()
        others = [node for node in self._nodes if self._asked.answer(node) is None and node not in (*missing, leader)]
        if others:
            text = f"{_list(self._with_reason(node) for node in others)} {_do(others)} not answer, either"
            self._add(text, self._starts(others), nodes=others)

    def _leader_unreached(self) -> str:
        """The active controller as a node that has clearance from it names it; "" if there is none."""
        answers = [report.answer for report in self._asked.reports.values() if report.answer is not None]
        named = {a.controller for a in answers if a.has_clearance and a.controller}
        if self._status.from_controller:
            return ""  # it was asked last
        return next((node for node in sorted(named) if self._asked.answer(node) is None), "")

    def _not_founded(self, missing: Sequence[str]) -> None:
        who = self._status.served_by
        if missing:
            text = f"{who} is waiting for {_list(map(self._with_reason, missing))}"
            self._add(text, self._starts(missing), nodes=missing)
        else:
            self._add(f"all founders answer{self._deaf()}", [_WATCH])

    def _unreached_controller(self, leader: str) -> None:
        text = f"the active controller is {self._with_reason(leader)}, which does not answer: the state is not known"
        note = f"Another voter takes over within seconds, unless {leader} is only not to be reached from here."
        self._add(text, [_WATCH], nodes=[leader], note=note)

    def _no_quorum(self, voters: Sequence[str], missing: Sequence[str]) -> None:
        needed = len(voters) // 2 + 1 - (len(voters) - len(missing))
        since = _since(self._asked.remembered_ms, self._asked.taken_ms)
        who = _list(f"{voter} ({self._reason(voter)}, {self._last_heard(voter)})" for voter in missing)
        text = f"no quorum{since}: {len(missing)} of {counted(len(voters), 'voter')} {_do(missing)} not answer: {who}"
        note = "" if needed == len(missing) else f"{needed} of them {_is(missing[:needed])} enough."
        # The voter that was up last has the longest log, so it should come back first.
        last = sorted(missing, key=lambda voter: voter not in self._nodes or not is_up(self._nodes[voter]))
        self._add(text, self._starts(last), nodes=missing, note=note, otherwise=_GONE)

    def _no_leader(self) -> None:
        since = _since(self._asked.remembered_ms, self._asked.taken_ms)
        note = "An election takes a second or two."
        self._add(f"no active controller{since}, though enough voters answer{self._deaf()}", [_WATCH], note=note)

    def _deaf(self) -> str:
        """A text on which of the voters that answer here don't hear each other."""
        pairs = [
            f"{name} does not hear {voter.node}"
            for name in self._status.coordinator.voters
            if (answer := self._asked.answer(name)) is not None
            for voter in answer.voters
            if self._asked.answer(voter.node) is not None
            and answer.controller == ""
            and not (voter.HasField("heard_ms") and voter.heard_ms < UNHEARD_MS)
        ]
        if not pairs:
            return ""
        unheard = dict.fromkeys(pair.rpartition(" ")[2] for pair in pairs)
        places = _list(f"{name} at {self._nodes[name].address}" for name in unheard if name in self._nodes)
        moved = f"; the table has {places}: if all have moved, name the new addresses in cluster.join" if places else ""
        return f"; {_list(pairs)}: see the network between them{moved}"

    # Nodes

    def failed_nodes(self) -> None:
        """Nodes that FAILED, one by one, and those that were stopped."""
        gone = [node for node in self._nodes.values() if node.state == NodeState.NODE_STATE_FAILED]
        for node in gone[:MAX_COMMANDS]:
            self._failed(node)
        if more := [node.id for node in gone[MAX_COMMANDS:]]:
            self._add(f"{counted(len(more), 'more node')} failed: {_list(more)}", self._starts(more), nodes=more)
        founders = [node.id for node in self._nodes.values() if node.state == NodeState.NODE_STATE_JOINING]
        if founders:
            text = f"{_list(map(self._with_reason, founders))} {_has(founders)} not joined yet"
            self._add(text, self._starts(founders), nodes=founders)
        left = [node.id for node in self._nodes.values() if node.state == NodeState.NODE_STATE_LEFT]
        if left:
            severity = "error" if self._up < self._status.table.cluster.min_nodes else "warning"
            self._add(f"{_list(left)} {_is(left)} stopped", self._starts(left), nodes=left, severity=severity)

    def _failed(self, node: Node) -> None:
        text = f"{node.id} failed at {_when(node.state_since_ms, self._asked.taken_ms)}"
        if self._asked.answer(node.id) is not None and self._data_port_problem(node.id):
            text += f": {node.state_reason}. It comes back once its data port answers"
            self._add(text, self._logs(node.id), nodes=[node.id], note=_DATA_PORT)
            return
        if self._asked.answer(node.id) is not None:
            text += f" ({node.state_reason}); it answers here, so it may be about to come back"
            self._add(text, [_WATCH, *self._logs(node.id)], nodes=[node.id])
            return
        # Also partitions whose leaders have not yet taken it out of the in-sync sets.
        short = self._counts[node.id].staying
        note = f"{counted(short, 'partition')} under-replicated without it." if short else ""
        text, gone = f"{text}: {self._reason(node.id)}", self._gone_for_good(node)
        self._add(text, self._starts([node.id]), nodes=[node.id], note=note, otherwise=gone)

    def _gone_for_good(self, node: Node) -> str:
        """The commands that help if the node never comes back, if they can work."""
        held = self._counts[node.id]
        if held.sole:
            others = f" The others: minkactl drain {node.id} --decommission" if held.staying > held.sole else ""
            lost = _if_lost(held.sole, self._asked.unserved_on(node.id).without_copy)
            return (
                f"If {node.id} is gone for good: no other node has all of {counted(held.sole, 'partition')}. Start it "
                f"elsewhere with its data_dir, or with a backup of that. If all that is lost: {lost}{others}"
            )
        remove = f"minkactl raft remove {node.id}"
        if not held.replicas:
            return f"If {node.id} is gone for good: {remove}"
        # Other nodes that are down keep their replicas, so one more node is enough to replace this one.
        down = sum(not is_up(n) and self._counts[n.id].replicas > 0 for n in self._nodes.values() if n.id != node.id)
        lacking = held.needed_replicas - self._live - down
        missing = "a new node" if lacking == 1 else f"{lacking} new nodes"
        join = f"let {missing} join, then " if lacking > 0 else ""
        return f"If {node.id} is gone for good: {join}minkactl drain {node.id} --decommission, then {remove}"

    def silent_nodes(self) -> None:
        """Nodes that are up by the table, but don't answer here."""
        heard = self._asked.heartbeat_ages_ms
        silent = [node for node in self._nodes.values() if is_up(node) and self._asked.answer(node.id) is None]
        for node in silent:
            age = heard.get(node.id)
            if age is not None and age < HEARD_LATELY_MS:
                continue
            ago = f"last heard it {units.duration(age / 1000)} ago" if age is not None else "has not heard it yet"
            told = f"the active controller {ago}"
            text = f"{node.id} does not answer ({self._reason(node.id)}); {told}"
            self._add(text, self._starts([node.id]), nodes=[node.id])
        if here := [node for node in silent if heard.get(node.id, HEARD_LATELY_MS) < HEARD_LATELY_MS]:
            names = [node.id for node in here]
            age = max(heard[node.id] for node in here)
            text = f"{_list(map(self._with_reason, names))} {_do(names)} not answer here; the active controller"
            text += f" heard {'it' if len(names) == 1 else 'each of them'} {units.duration(age / 1000)} ago"
            ended = any(self._asked.reports[node].refused for node in names)
            note = "What has ended counts as failed within a second or two." if ended else ""
            commands = [_WATCH] if ended else [f"minkactl status --endpoints {node.address}" for node in here]
            self._add(text, commands, nodes=names, note=note, severity="warning")

    def _data_port_problem(self, node: str) -> str:
        return self._reported[node].data_port_problem if node in self._reported else ""

    def silent_data_ports(self) -> None:
        """Nodes that are heard, and don't answer where clients and other nodes reach their data."""
        up = (node for node in self._nodes.values() if is_up(node) and self._asked.is_heard(node.id))
        silent = [node for node in up if self._data_port_problem(node.id)]
        for node in silent[:MAX_COMMANDS]:
            reported = self._reported[node.id]
            lasted = units.duration(reported.data_port_problem_ms / 1000)
            text = f"{node.id} is heard, but {reported.data_port_problem}, for {lasted}"
            self._add(text, self._logs(node.id), nodes=[node.id], note=_DATA_PORT)
        if more := [node.id for node in silent[MAX_COMMANDS:]]:
            text = f"the data ports of {counted(len(more), 'more node')} don't answer, either: {_list(more)}"
            self._add(text, [], nodes=more)

    def tables_behind(self) -> None:
        """Nodes whose copies of the table stand still."""
        for node in self._nodes.values():
            reported = self._reported.get(node.id)
            if reported is not None and is_up(node) and reported.behind_ms > BEHIND_MS:
                lasted, applied = units.duration(reported.behind_ms / 1000), units.number(reported.applied_index)
                text = f"{node.id} has applied nothing after entry {applied} of the coordinator's log for {lasted}"
                note = "Its copy of the table is old. It gets the log over its data port."
                self._add(text, self._logs(node.id), nodes=[node.id], note=note)

    def nodes_without_clearance(self) -> None:
        """Nodes that answer, but have no clearance from the active controller."""
        for node in self._nodes.values():
            answer = self._asked.answer(node.id)
            if answer is None or answer.has_clearance or not is_up(node) or self._data_port_problem(node.id):
                continue
            lapsed = answer.clearance_lapsed_ms if answer.HasField("clearance_lapsed_ms") else None
            since = _since(None if lapsed is None else self._asked.taken_ms - lapsed, self._asked.taken_ms)
            text = f"{node.id} answers, and has no clearance{since}, so it serves nothing"
            failing = [f"{check.name}: {check.reason}" for check in answer.checks if not check.ok]
            self._add(text, self._logs(node.id), nodes=[node.id], note="; ".join(failing))

    def damaged_leaders(self) -> None:
        """Partitions whose leader serves nothing of them, since its copy is damaged."""
        for one in self._unserved.leaders[:MAX_COMMANDS]:
            self._damaged(one)
        named = min(len(self._unserved.leaders), MAX_COMMANDS)
        if more := self._unserved.damaged - named:
            which = [f"{one.partition} on {one.node_id}" for one in self._unserved.leaders[named:]]
            nodes = [one.node_id for one in self._unserved.nodes if one.damaged]
            text = f"{counted(more, 'more partition')} not served, since their leaders' copies are damaged: "
            self._add(text + _list(which), [_EXPLAIN.format("NAME")], nodes=nodes)

    def _damaged(self, one: DamagedLeader) -> None:
        text = f"{one.partition} is not served: the copy of its leader, {one.node_id}, is damaged: {one.reason}"
        explain = _EXPLAIN.format(one.partition)
        if not one.is_alone:
            note = "Another replica in sync takes over in a moment, and the copy is replaced."
            self._add(text, [_WATCH, explain], nodes=[one.node_id], note=note)
            return
        address = self._address(one.node_id)
        down = self._down(one.eligible)
        back = [stop_command(one.node_id, address), start_command(one.node_id, address, True)]
        note = (
            f"Between stop and start, put data_dir/partitions/{one.partition_id} of {one.node_id} back: all its files, \
from where they went or from a backup of one moment."
        )
        if down:
            note += f" {' or '.join(down)} has everything, too, and leads once it is started."
        otherwise = f"If there is no such copy of {one.partition}: "
        otherwise += f"{accept_loss(one.partition)}." if one.others else _IS_LOST
        self._add(text, [*self._starts(down), *back], nodes=[one.node_id], note=note, otherwise=otherwise)

    def too_few_nodes(self) -> None:
        """There are fewer nodes than the cluster's minimum, even if those that are down were started."""
        least = self._status.table.cluster.min_nodes
        named = {node for row in self.rows if row["severity"] == "error" for node in row["nodes"]}
        down = sum(not is_up(node) for node in self._nodes.values() if node.id in named)
        if self._up + down >= least:
            return  # each that is missing is a problem already
        note = "Nodes that are new join with cluster.join in their configuration."
        self._add(f"{self._up} of at least {counted(least, 'node')} live", ["minkactl nodes"], note=note)

    def clocks(self) -> None:
        """Clocks that are more than a second off."""
        known = self._asked.clocks_ms
        most = of_most(known.values(), self._up)
        off = [node for node, ms in known.items() if most is not None and abs(ms - most) > OFF_MS]
        for node in off[:MAX_COMMANDS]:
            ahead = (known[node] - (most or 0)) / 1000
            text = f"the clock of {node} is {units.duration(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} "
            note = "Its node goes by the others' clocks meanwhile, so keys keep their lifetimes."
            command = clock_command(node, self._address(node))
            self._add(f"{text}those of most nodes", [command], nodes=[node], note=note, severity="warning")
        if more := off[MAX_COMMANDS:]:
            commands = [clock_command(node, self._address(node)) for node in more]
            self._add(
                f"{counted(len(more), 'more clock')} off: {_list(more)}", commands, nodes=more, severity="warning"
            )
        if most is None and known and max(known.values()) - min(known.values()) > OFF_MS:
            span = units.duration((max(known.values()) - min(known.values())) / 1000)
            commands = [clock_command(node, self._address(node)) for node in known]
            text = f"the clocks of {_list(known)} differ by {span}, and too few agree to say which are right"
            note = "Keys with a lifetime expire by the clock of their leader: early where it is ahead."
            self._add(text, commands, nodes=known, note=note, severity="warning")

    # Partitions

    def offline_partitions(self) -> None:
        """Partitions that nobody leads."""
        offline = sum(keyspace.offline for keyspace in self._status.summary.keyspaces)
        if offline:
            holders = self._down(node for node, counts in self._counts.items() if counts.offline_in_sync)
            where = f"; what is in sync of {'it' if offline == 1 else 'them'} is on {_list(holders)}" if holders else ""
            show = "minkactl partitions --state offline -o wide"
            text = f"{counted(offline, 'partition')} offline{where}"
            otherwise = f"If what they had is lost for good: {_if_lost(offline, self._unserved.without_copy)}"
            self._add(text, [*self._starts(holders), show], nodes=holders, otherwise=otherwise)

    def unconfirmed_leaders(self) -> None:
        """Partitions that have a leader, which has not confirmed for seconds that it leads."""
        if waiting := self._unserved.unconfirmed:
            by = list(self._unserved.unconfirmed_by)
            text = (
                f"{counted(waiting, 'partition')} not served: {_list(by)} {_has(by)} not confirmed for seconds to lead"
            )
            logs = [command for node in by for command in self._logs(node)]
            self._add(text, [*logs, "minkactl partitions --state assigned"], nodes=by)

    def not_in_sync(self) -> None:
        """Partitions that refuse writes, and those that have lost a part of their replicas."""
        summary = self._status.summary
        if summary.under_min_insync:
            down = self._down(node for node, counts in self._counts.items() if counts.keeps_from_writes)
            text = f"{counted(summary.under_min_insync, 'partition')} under min-insync, so writes are refused"
            show = "minkactl partitions --under-min-insync -o wide"
            self._add(text, [*self._starts(down), show], nodes=down)
        # Partitions that lack only nodes which a command above starts need no problem of their own.
        lacking = (*summary.not_in_sync, summary.others_not_in_sync)
        fewer = sum(one.partitions for one in lacking if not self._told.issuperset(one.nodes))
        if fewer:
            text = f"{counted(fewer, 'partition')} under-replicated"
            self._add(text, ["minkactl partitions --under-replicated -o wide"], severity="warning")

    def voters_in_one_zone(self) -> None:
        """A zone has two voters more than another, so the quorum may end with that zone."""
        zones = zone_rows(self._status)
        pair, due = uneven(zones), self._status.coordinator.seat_due
        if pair is None:
            return
        most, least = pair
        text = f"zone {most['zone'] or '-'} has {most['voter_count']} of {len(self._status.coordinator.voters)} voters"
        text += f", zone {least['zone'] or '-'} has {least['voter_count'] or 'none'}"
        if most["ends_quorum"]:
            text += f": the end of zone {most['zone'] or '-'} would end the quorum"
        if due.promote:
            wait = units.duration(due.live_for_ms / 1000)
            note = f"The seat moves automatically once {due.promote} has been live for {wait}."
            commands = [f"minkactl raft promote {due.promote} --instead-of {due.demote}"]
        else:
            note = f"A seat moves automatically once a node of zone {least['zone'] or '-'} is live, and all voters are."
            down = self._down(node.id for node in self._nodes.values() if node.zone == least["zone"])
            commands = self._starts(down) or [_WATCH]
        self._add(text, commands, note=note, severity="warning")

    def skewed(self) -> None:
        """Replicas or leaders that are spread unevenly, if there is a command that evens them out."""
        for text, command in skews(self._status):
            self._add(text, [command], severity="warning")

    # Words

    def _down(self, nodes: Iterable[str]) -> list[str]:
        return [node for node in dict.fromkeys(nodes) if node in self._nodes and not is_up(self._nodes[node])]

    def _reason(self, node: str) -> str:
        report = self._asked.reports.get(node)
        return report.failure if report is not None and report.failure else "it was not asked"

    def _last_heard(self, node: str) -> str:
        at = self._asked.last_heard_ms(self._nodes[node]) if node in self._nodes else None
        return f"last heard at {_moment(at, (self._asked.taken_ms - at) / 1000)}" if at else "since when is not known"

    def _with_reason(self, node: str) -> str:
        return f"{node} ({self._reason(node)})"

    def _starts(self, nodes: Iterable[str]) -> list[str]:
        """The commands that start these nodes, or have them take another certificate, without those that were named
        already.
        """
        found = []
        for node in nodes:
            if node not in self._told:
                report = self._asked.reports.get(node)
                self._told.add(node)
                if report is not None and report.certificate:
                    found.append(renew_command(node, self._address(node)))
                else:
                    found.append(start_command(node, self._address(node), report is None or report.refused))
        return found

    def _logs(self, node: str) -> list[str]:
        return [look_command(node, self._address(node))]

    def _address(self, node: str) -> str:
        if node in self._nodes:
            return self._nodes[node].address
        answers = [report.answer for report in self._asked.reports.values() if report.answer is not None]
        return next((v.address for answer in answers for v in answer.voters if v.node == node), "")


_WATCH: Final = "minkactl status --watch"
_EXPLAIN: Final = "minkactl partitions explain {}"
_DATA_PORT: Final = (
    "See the network between the nodes and that address (a firewall, advertise.data), and the node's log. "
    "If its process hangs, restart it."
)


def _if_lost(partitions: int, without_copy: int) -> str:
    """The advice for partitions whose replicas in sync are lost for good; `without_copy` of them have no other copy."""
    if not without_copy:
        return _ACCEPT_LOSS
    if without_copy >= partitions:
        return _IS_LOST[0].upper() + _IS_LOST[1:]
    return f"{_ACCEPT_LOSS} Of {without_copy:,}, {_IS_LOST}"


def _list(names: Iterable[str]) -> str:
    """A text with up to eight of the names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _do(names: Sequence[str]) -> str:
    return "does" if len(names) == 1 else "do"


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _since(unix_ms: int | None, now_ms: int) -> str:
    """A text such as " since 11:13:36 (2 min 03 s)"; nothing if it isn't known."""
    if not unix_ms or unix_ms >= now_ms:
        return ""
    age = max(now_ms - unix_ms, 0) / 1000
    return f" since {_moment(unix_ms, age)} ({units.duration(age)})"


def _when(unix_ms: int, now_ms: int) -> str:
    """A text such as 11:13:36 (2 min 03 s ago)."""
    age = max(now_ms - unix_ms, 0) / 1000
    return f"{_moment(unix_ms, age)} ({units.duration(age)} ago)"


def _moment(unix_ms: int, age: float) -> str:
    """The time of the day, with the date where it isn't one of the last 24 hours."""
    return units.clock(unix_ms) if age > 86_400 else units.clock(unix_ms)[11:]
