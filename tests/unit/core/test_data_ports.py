"""Data ports that count as dead, by the reports of the nodes that watch them."""

import pytest

from minka.v1.cluster_pb2 import Node, NodeState
from minka.v1.coordinator_pb2 import HeartbeatRequest
from minkad.core.controller import DataPortJudge, watched_by

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

    def say(self, accused: str, watchers: str, reason: str = "no answer") -> None:
        """Let each of the watchers report all the accused for this reason, and no other node."""
        for watcher in watchers:
            self.judge.note(watcher, dict.fromkeys(accused, reason))
        self.judge.turn(self.table, self.now)

    def withheld(self) -> str:
        return "".join(name for name in self.table if self.judge.withheld(name))


def test_each_node_watches_itself_and_the_three_before_it() -> None:
    assert watched("abcdef", "e") == "edcb"
    assert watched("abcdef", "b") == "bafe"
    assert watched("abc", "a") == "acb"
    assert watched("a", "a") == "a"
    assert watched("abc", "x") == "", "it is in no table yet"


def test_each_node_watches_itself_and_three_others_watch_it() -> None:
    names = "abcdefgh"
    for name in names:
        assert sum(name in watched(names, own) for own in names) == 4


def test_failed_nodes_are_watched_as_well_and_nodes_that_left_are_not() -> None:
    assert watched("abdf", "f", failed="ce", left="") == "fedcba"
    assert watched("abdf", "f", left="ce") == "fdba"


def test_most_of_those_who_watch_a_port_judge_it() -> None:
    judge = Judge(nodes("abcde"))
    judge.say("a", "ab")
    assert judge.withheld() == "", "one of three others"
    judge.say("a", "abc", "connection refused")
    assert judge.withheld() == "a"
    assert (
        judge.judge.withheld("a") == "its data port a:1 does not answer b, c and the node itself (connection refused)"
    )


def test_a_node_that_does_not_reach_its_own_address_is_not_its_own_judge() -> None:
    judge = Judge(nodes("abc"))
    judge.say("a", "a")
    assert judge.withheld() == ""


def test_a_watcher_that_is_cut_off_judges_nobody() -> None:
    judge = Judge(nodes("abcde"))
    judge.say("abcd", "e")
    assert judge.withheld() == ""


def test_of_two_nodes_both_have_to_say_it() -> None:
    judge = Judge(nodes("ab"))
    judge.say("a", "b")
    assert judge.withheld() == ""
    judge.say("a", "a")
    assert judge.withheld() == "a"


def test_a_watcher_that_is_gone_does_not_count() -> None:
    judge = Judge(nodes("abde", failed="c"))
    judge.say("a", "bc")
    assert judge.withheld() == ""


@pytest.mark.parametrize(("names", "by", "silent"), [("abc", "b", ""), ("abc", "bc", "a"), ("ab", "b", "a")])
def test_a_node_that_does_not_reach_its_own_address_is_not_failed_and_registered_in_turns(
    names: str, by: str, silent: str
) -> None:
    """The node's own report, which is missing once it has failed, doesn't decide the judgement."""
    judge = Judge(nodes(names))
    judge.say("a", f"a{by}")
    assert judge.judge.unanswered("a") is not None if silent else judge.withheld() == ""
    judge = Judge(nodes(names[1:], failed="a"))
    judge.say("a", by)
    assert judge.withheld() == silent


def test_an_answer_ends_it() -> None:
    judge = Judge(nodes("abcde"))
    judge.say("a", "abcd")
    judge.say("", "abcd")
    assert judge.withheld() == ""
    assert judge.judge.unanswered("a") is None


def test_while_most_of_the_cluster_is_silent_nobody_is_judged() -> None:
    judge = Judge(nodes("abcde"))
    judge.say("ab", "abcd")
    assert judge.withheld() == "ab"
    judge.say("abc", "abcd")
    assert judge.withheld() == ""
    assert judge.judge.unanswered("c") is not None, "status names it nevertheless"


def test_what_was_said_of_the_process_before_does_not_count() -> None:
    judge = Judge(nodes("abcde"))
    judge.judge.began("a", judge.now)
    judge.say("a", "abcd")
    assert judge.withheld() == ""
    judge.now += GRACE + 0.01
    judge.say("a", "abcd")
    assert judge.withheld() == "a"


def test_it_is_known_since_when() -> None:
    judge = Judge(nodes("abcde"))
    judge.say("a", "abcd")
    judge.now += 3.0
    judge.say("a", "abcd", "connection refused")
    found = judge.judge.unanswered("a")
    assert found is not None
    assert judge.now - found.since == 3.0


def test_a_failed_node_stays_judged_by_the_others_until_it_answers() -> None:
    """A failed node sends no heartbeats, so its last report doesn't count."""
    table = nodes("bcde", failed="a")
    judge = Judge(table)
    judge.say("a", "bcd")
    assert judge.withheld() == "a"
    judge.say("", "bc")
    assert judge.withheld() == ""


def test_a_node_has_given_up_its_clearance_when_it_has_taken_all_answers_that_brought_one() -> None:
    """A node's heartbeats don't wait for the answers to earlier ones: a clearance may still be on its way."""
    judge = Judge(nodes("abcde"))
    judge.judge.granted_to(beat(7, 5, without=False))
    judge.say("a", "abcd")
    judge.judge.withheld_from(beat(8, 6, without=True))
    assert not judge.judge.has_given_up("a")
    judge.judge.withheld_from(beat(9, 7, without=False))
    assert not judge.judge.has_given_up("a")
    judge.judge.withheld_from(beat(10, 7, without=True))
    assert judge.judge.has_given_up("a")


def test_a_late_heartbeat_of_a_former_stream_hides_no_clearance_that_is_on_its_way() -> None:
    judge = Judge(nodes("abcde"))
    judge.judge.granted_to(beat(7, 5, without=False))
    judge.judge.granted_to(beat(3, 2, without=False))
    judge.say("a", "abcd")
    judge.judge.withheld_from(beat(8, 6, without=True))
    assert not judge.judge.has_given_up("a")


def test_what_was_granted_to_the_process_before_does_not_count() -> None:
    judge = Judge(nodes("abcde"))
    judge.judge.granted_to(beat(7, 5, without=False))
    judge.say("a", "abcd")
    judge.judge.withheld_from(beat(1, 0, without=True, incarnation="2"))
    assert judge.judge.has_given_up("a")
