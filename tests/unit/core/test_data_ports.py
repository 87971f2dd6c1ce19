"""Nodes watch each other's data ports. From their reports, the judge decides which ports are dead."""

import pytest

from minka.v1.cluster_pb2 import Node, NodeState
from minka.v1.coordinator_pb2 import HeartbeatRequest, UnansweredPort
from minkad.core.controller.data_ports import DataPortJudge, watched_by

LIVE, FAILED, LEFT = NodeState.NODE_STATE_LIVE, NodeState.NODE_STATE_FAILED, NodeState.NODE_STATE_LEFT
GRACE = 0.8


def nodes(names: str, failed: str = "", left: str = "") -> dict[str, Node]:
    states = {**dict.fromkeys(names, LIVE), **dict.fromkeys(failed, FAILED), **dict.fromkeys(left, LEFT)}
    return {name: Node(id=name, data_address=f"{name}:1", state=states[name]) for name in sorted(states)}


def beat(sequence: int, answered: int, without: bool, incarnation: str = "1") -> HeartbeatRequest:
    said = HeartbeatRequest(node_id="a", sequence=sequence, answered_sequence=answered, incarnation=incarnation)
    said.without_clearance = without
    return said


def watched(names: str, own: str, **others: str) -> str:
    return "".join(node.id for node in watched_by(nodes(names, **others).values(), own))


class Judge:
    def __init__(self, table: dict[str, Node]) -> None:
        self.table = table
        self.now = 100.0
        self.judge = DataPortJudge(GRACE)
        self.sequence = 0

    def say(self, accused: str, watchers: str, reason: str = "no answer") -> None:
        """Let each watcher report, with this reason, that the accused ports don't answer. All other ports answer."""
        for watcher in watchers:
            self.judge.note(self.words("", watcher), self.now)
            self.judge.note(self.words(accused, watcher, reason), self.now)
        self.judge.turn(self.table, self.now)

    def words(self, accused: str, watcher: str, reason: str = "no answer") -> HeartbeatRequest:
        """The watcher's next heartbeat; the watcher has the answers to all earlier ones."""
        self.sequence += 1
        unanswered = [UnansweredPort(node_id=one, reason=reason) for one in accused]
        return HeartbeatRequest(
            node_id=watcher, sequence=self.sequence, answered_sequence=self.sequence - 1, unanswered=unanswered
        )

    def turn(self, seconds: float) -> None:
        self.now += seconds
        self.judge.turn(self.table, self.now)

    def withheld(self) -> str:
        return "".join(name for name in self.table if self.judge.withheld(name))


def test_each_node_watches_itself_and_the_three_nodes_before_it() -> None:
    assert watched("abcdef", "e") == "edcb"
    assert watched("abcdef", "b") == "bafe"
    assert watched("abc", "a") == "acb"
    assert watched("a", "a") == "a"
    assert watched("abc", "x") == "", "x isn't in the table yet"


def test_each_node_is_watched_by_itself_and_three_others() -> None:
    names = "abcdefgh"
    for name in names:
        assert sum(name in watched(names, own) for own in names) == 4


def test_failed_nodes_are_watched_and_nodes_that_left_are_not() -> None:
    assert watched("abdf", "f", failed="ce", left="") == "fedcba"
    assert watched("abdf", "f", left="ce") == "fdba"


def test_a_port_is_dead_if_most_of_its_watchers_say_so() -> None:
    judge = Judge(nodes("abcde"))
    judge.say("a", "ab")
    assert judge.withheld() == "", "one of three others"
    judge.say("a", "abc", "connection refused")
    assert judge.withheld() == "a"
    assert (
        judge.judge.withheld("a") == "its data port a:1 does not answer b, c and the node itself (connection refused)"
    )


def test_old_words_of_watchers_do_not_count() -> None:
    """A controller that was cut off judges before it hears what the watchers say now."""
    judge = Judge(nodes("abc"))
    judge.say("a", "bc")
    assert judge.withheld() == "a"
    judge.turn(0.99 * GRACE)
    assert judge.withheld() == "a"
    judge.turn(0.02 * GRACE)
    assert judge.withheld() == ""
    judge.say("a", "bc")
    assert judge.withheld() == "a"


def test_the_words_of_a_heartbeat_that_the_network_delays_are_old() -> None:
    judge = Judge(nodes("abc"))
    for watcher in "bc":
        judge.judge.note(judge.words("", watcher), judge.now)
        delayed = judge.words("a", watcher)
        judge.judge.note(delayed, judge.now + 0.9 * GRACE)
    judge.turn(0.95 * GRACE)
    assert judge.withheld() == "a"
    judge.turn(0.1 * GRACE)
    assert judge.withheld() == ""


def test_words_of_unknown_age_do_not_count() -> None:
    """A new controller has given no answer yet. The network may have delayed the heartbeat for any time."""
    judge = Judge(nodes("abc"))
    for watcher in "bc":
        judge.judge.note(judge.words("a", watcher), judge.now)
    judge.turn(0.0)
    assert judge.withheld() == ""


def test_a_late_heartbeat_of_a_former_stream_does_not_replace_newer_words() -> None:
    judge = Judge(nodes("abc"))
    for watcher in "bc":
        judge.judge.note(judge.words("", watcher), judge.now)
        late, newer = judge.words("a", watcher), judge.words("", watcher)
        newer.answered_sequence = late.answered_sequence
        judge.judge.note(newer, judge.now)
        judge.judge.note(late, judge.now)
    judge.turn(0.0)
    assert judge.withheld() == ""


def test_a_nodes_own_report_alone_does_not_make_its_port_dead() -> None:
    judge = Judge(nodes("abc"))
    judge.say("a", "a")
    assert judge.withheld() == ""


def test_the_reports_of_a_watcher_that_is_cut_off_do_not_count() -> None:
    judge = Judge(nodes("abcde"))
    judge.say("abcd", "e")
    assert judge.withheld() == ""


def test_in_a_cluster_of_two_a_port_is_dead_only_if_both_nodes_say_so() -> None:
    judge = Judge(nodes("ab"))
    judge.say("a", "b")
    assert judge.withheld() == ""
    judge.say("a", "a")
    assert judge.withheld() == "a"


def test_the_report_of_a_failed_watcher_does_not_count() -> None:
    judge = Judge(nodes("abde", failed="c"))
    judge.say("a", "bc")
    assert judge.withheld() == ""


@pytest.mark.parametrize(("names", "by", "silent"), [("abc", "b", ""), ("abc", "bc", "a"), ("ab", "b", "a")])
def test_the_verdict_on_a_port_is_the_same_after_its_node_has_failed(names: str, by: str, silent: str) -> None:
    """A failed node no longer reports about its own port. If the verdict depended on this report, the node would fail
    and register again and again.
    """
    judge = Judge(nodes(names))
    judge.say("a", f"a{by}")
    assert judge.judge.unanswered("a") is not None if silent else judge.withheld() == ""
    judge = Judge(nodes(names[1:], failed="a"))
    judge.say("a", by)
    assert judge.withheld() == silent


def test_a_port_that_answers_is_no_longer_dead() -> None:
    judge = Judge(nodes("abcde"))
    judge.say("a", "abcd")
    judge.say("", "abcd")
    assert judge.withheld() == ""
    assert judge.judge.unanswered("a") is None


def test_no_port_is_dead_while_most_ports_of_the_cluster_are_silent() -> None:
    judge = Judge(nodes("abcde"))
    judge.say("ab", "abcd")
    assert judge.withheld() == "ab"
    judge.say("abc", "abcd")
    assert judge.withheld() == ""
    assert judge.judge.unanswered("c") is not None, "status names it nevertheless"


def test_reports_about_an_earlier_process_do_not_count() -> None:
    judge = Judge(nodes("abcde"))
    judge.judge.began("a", judge.now)
    judge.say("a", "abcd")
    assert judge.withheld() == ""
    judge.now += GRACE + 0.01
    judge.say("a", "abcd")
    assert judge.withheld() == "a"


def test_the_judge_knows_since_when_a_port_is_silent() -> None:
    judge = Judge(nodes("abcde"))
    judge.say("a", "abcd")
    judge.now += 3.0
    judge.say("a", "abcd", "connection refused")
    found = judge.judge.unanswered("a")
    assert found is not None
    assert judge.now - found.since == 3.0


def test_the_port_of_a_failed_node_is_dead_until_it_answers_the_others() -> None:
    """Only the reports of other nodes count: the failed node sends no heartbeats, so its own last report is old."""
    table = nodes("bcde", failed="a")
    judge = Judge(table)
    judge.say("a", "bcd")
    assert judge.withheld() == "a"
    judge.say("", "bc")
    assert judge.withheld() == ""


def test_a_node_has_given_up_its_clearance_once_it_has_seen_all_answers_with_grants() -> None:
    """Heartbeats don't wait for earlier answers, so an answer that grants a clearance may still be on its way."""
    judge = Judge(nodes("abcde"))
    judge.judge.granted_to(beat(7, 5, without=False))
    judge.say("a", "abcd")
    judge.judge.withheld_from(beat(8, 6, without=True))
    assert not judge.judge.has_given_up("a")
    judge.judge.withheld_from(beat(9, 7, without=False))
    assert not judge.judge.has_given_up("a")
    judge.judge.withheld_from(beat(10, 7, without=True))
    assert judge.judge.has_given_up("a")


def test_a_late_heartbeat_of_a_former_stream_hides_no_grant_that_is_on_its_way() -> None:
    judge = Judge(nodes("abcde"))
    judge.judge.granted_to(beat(7, 5, without=False))
    judge.judge.granted_to(beat(3, 2, without=False))
    judge.say("a", "abcd")
    judge.judge.withheld_from(beat(8, 6, without=True))
    assert not judge.judge.has_given_up("a")


def test_grants_to_an_earlier_process_do_not_count() -> None:
    judge = Judge(nodes("abcde"))
    judge.judge.granted_to(beat(7, 5, without=False))
    judge.say("a", "abcd")
    judge.judge.withheld_from(beat(1, 0, without=True, incarnation="2"))
    assert judge.judge.has_given_up("a")
