"""The attempts of a control call: the choice of the next node, the time for its answer, and when the attempts end."""

import pytest

from minka.engine.attempts import Attempts
from minka.errors import Code, MinkaError

A, B, C = "athens:7400", "byzantium:7400", "cyrene:7400"


def refusal(code: Code, leader: str = "") -> MinkaError:
    return MinkaError(code, "the node refuses", leader_address=leader)


def attempts(first: str = "", *, is_repeatable: bool = True, timeout: float = 6.0) -> Attempts:
    return Attempts([A, B], first, 100.0, timeout, is_repeatable=is_repeatable)


def test_each_is_asked_once_in_a_round_and_gets_its_share_of_the_time() -> None:
    asked = attempts(first=B)
    assert asked.next(100.0) == (B, 3.0), "B is among the endpoints, too"
    assert asked.goes_on(B, refusal(Code.DEADLINE_EXCEEDED))
    assert asked.next(103.0) == (A, 3.0)
    assert asked.goes_on(A, refusal(Code.UNREACHABLE))
    assert asked.next(104.0) is None
    assert asked.pause(104.0) == 0.05
    assert asked.next(104.05) is not None
    assert attempts(is_repeatable=False).next(101.0) == (A, 5.0), "a change has only one attempt"


def test_a_refusal_that_names_the_controller_is_followed_now_and_later() -> None:
    asked = attempts(first=A)
    assert asked.next(100.0) == (A, 3.0)
    assert asked.goes_on(A, refusal(Code.NOT_CONTROLLER, leader=C))
    assert asked.first == C
    assert asked.next(100.0) == (C, 3.0)
    assert asked.goes_on(C, refusal(Code.SHUTTING_DOWN))
    assert asked.first == "", "later calls don't begin with C"


@pytest.mark.parametrize("code", [Code.UNKNOWN_NODE, Code.UNKNOWN_PARTITION, Code.DISK_LOW, Code.OUTCOME_UNKNOWN])
def test_the_result_of_a_request_is_not_asked_for_again(code: Code) -> None:
    assert not attempts().goes_on(A, refusal(code))


def test_a_change_whose_answer_is_late_is_not_repeated() -> None:
    assert not attempts(is_repeatable=False).goes_on(A, refusal(Code.DEADLINE_EXCEEDED))


def refused_by_all(asked: Attempts, now: float, code: Code) -> None:
    while (place := asked.next(now)) is not None:
        assert asked.goes_on(place[0], refusal(code))


def test_pauses_grow_until_it_is_too_late_for_an_answer() -> None:
    asked, now = attempts(timeout=1.85), 100.0
    # A sixth pause would leave 0.1 s for answers: less than a tenth of the timeout.
    for pause in (0.05, 0.1, 0.2, 0.4, 0.5):
        refused_by_all(asked, now, Code.NO_CONTROLLER)
        assert asked.pause(now) == pause
        now += pause
    refused_by_all(asked, now, Code.NO_CONTROLLER)
    with pytest.raises(MinkaError, match="NO_CONTROLLER: no node took the request"):
        asked.pause(now)


def test_without_anybody_it_ends_at_once() -> None:
    asked = attempts()
    refused_by_all(asked, 100.0, Code.UNREACHABLE)
    with pytest.raises(MinkaError, match="UNREACHABLE"):
        asked.pause(100.0)
