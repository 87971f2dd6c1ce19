"""A judge declares nodes failed, by the heartbeats that it has heard and the times of its own turns."""

import pytest

from minkad.core.controller.failure_detector import PATIENCE, FailureDetector

TIMEOUT, TICK = 0.8, 0.05


class Judge:
    """A judge on the node `self`, with a turn every 50 ms. It hears each node every 200 ms, except those in `quiet`."""

    def __init__(self, *others: str, clearances_end: float = 0.0) -> None:
        self.others = list(others)
        self.now = 0.0
        self.detector = FailureDetector(TIMEOUT, 0.0, clearances_end, TICK)
        self.quiet: set[str] = set()
        self.failed: list[list[str]] = []
        self._beats = 0

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            self.turn()

    def stand_still(self, seconds: float) -> None:
        """Let the judge have no turn for a while. It hears the messages of this time only after its late turn."""
        self.now += seconds
        self.turn()

    def turn(self) -> None:
        self.detector.turn(self.now)
        up = [node for node in self.others if node not in [n for names in self.failed for n in names]]
        if silent := self.detector.silent(up, self.now):
            self.failed.append(silent)
        self._beats += 1
        if self._beats % 4 == 0:
            for node in self.others:
                if node not in self.quiet:
                    self.detector.heard(node, self.now)


def test_only_a_silent_node_is_failed_and_only_after_the_timeout() -> None:
    judge = Judge("a", "b", "c")
    judge.run(2.0)
    judge.quiet = {"b"}
    judge.run(TIMEOUT - 0.1)
    assert judge.failed == []
    judge.run(0.2)
    assert judge.failed == [["b"]]
    judge.run(10.0)
    assert judge.failed == [["b"]]


@pytest.mark.parametrize("seconds", [0.3, 0.92, 3.0, 60.0])
def test_a_judge_that_stood_still_fails_no_node(seconds: float) -> None:
    judge = Judge("a", "b", "c")
    judge.run(2.0)
    judge.stand_still(seconds)
    judge.run(3.0)
    assert judge.failed == []


def test_a_silent_nodes_timeout_does_not_run_while_the_judge_stands_still() -> None:
    judge = Judge("a", "b", "c", "d")
    judge.run(2.0)
    judge.quiet = {"a"}
    judge.run(0.4)
    judge.stand_still(5.0)
    assert judge.failed == []
    judge.run(0.45)
    assert judge.failed == [["a"]]


def test_a_judge_whose_turns_are_always_late_fails_nodes_later() -> None:
    judge = Judge("a", "b", "c", "d")
    judge.run(2.0)
    judge.quiet = {"a"}
    for _ in range(7):
        judge.stand_still(0.3)
    assert judge.failed == [], "of the time before a late turn, at most two ticks count"
    judge.stand_still(0.3)
    judge.stand_still(0.3)
    assert judge.failed == [["a"]]


def test_a_new_judge_gives_all_nodes_time_to_find_it() -> None:
    judge = Judge("a", "b", "c")
    judge.quiet = {"a"}
    judge.run(2 * TIMEOUT - TICK)
    assert judge.failed == []
    judge.run(2 * TICK)
    assert judge.failed == [["a"]]


@pytest.mark.parametrize("seconds", [0.3, 3.0])
def test_a_new_judge_that_first_stood_still_gives_nodes_the_whole_time_afterwards(seconds: float) -> None:
    judge = Judge("a", "b", "c")
    judge.stand_still(seconds)
    judge.quiet = {"a"}
    judge.run(2 * TIMEOUT - 3 * TICK)
    assert judge.failed == []


def test_no_node_is_failed_before_the_clearances_of_former_judges_have_ended() -> None:
    judge = Judge("a", "b", "c", clearances_end=2.5)
    judge.quiet = {"a"}
    judge.run(2.4)
    assert judge.failed == []
    assert judge.detector.is_alive("a", judge.now)
    judge.run(0.15)
    assert judge.failed == [["a"]]


def test_a_node_known_to_be_silent_for_longer_is_failed_earlier() -> None:
    """The voters tell a new judge how long they haven't heard the former leader, so it fails that node earlier."""
    judge = Judge("a", "b", "c", clearances_end=0.1)
    judge.detector.heard("a", -0.6)
    judge.quiet = {"a"}
    judge.run(0.15)
    assert judge.failed == []
    judge.run(0.1)
    assert judge.failed == [["a"]]


def test_a_judge_that_hears_few_nodes_suspects_itself_for_a_limited_time() -> None:
    """Three of five nodes are silent. The judge waits longer than usual, and then fails all three at once."""
    judge = Judge("a", "b", "c", "d")
    judge.run(2.0)
    judge.quiet = {"a", "b", "c"}
    judge.run(TIMEOUT * PATIENCE - 0.1)
    assert judge.failed == []
    judge.run(0.2)
    assert judge.failed == [["a", "b", "c"]]


def test_nodes_that_fall_silent_one_after_the_other_are_counted_together() -> None:
    judge = Judge("a", "b", "c", "d")
    judge.run(2.0)
    for node in "abc":
        judge.quiet.add(node)
        judge.run(0.2)
    judge.run(TIMEOUT)
    assert judge.failed == []
    judge.quiet.clear()
    judge.run(10.0)
    assert judge.failed == []


@pytest.mark.parametrize(("others", "quiet"), [("a", "a"), ("abc", "a"), ("abcd", "ab")])
def test_a_small_part_of_the_cluster_is_failed_without_a_longer_wait(others: str, quiet: str) -> None:
    """A small part is one node of two, or two of five."""
    judge = Judge(*others)
    judge.run(2.0)
    judge.quiet = set(quiet)
    judge.run(TIMEOUT + TICK)
    assert sorted(node for names in judge.failed for node in names) == sorted(quiet)
