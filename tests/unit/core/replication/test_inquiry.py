"""A leader repeats a request to the controller until it knows the request's outcome."""

import pytest

from minka.errors import Code, MinkaError
from minkad.core.replication.inquiry import REFUSALS, Inquiry, Outcome
from tests.unit.core.replication.bench import SETTINGS

REFUSED = MinkaError(Code.STALE_EPOCH, "the row has changed")
UNKNOWN = MinkaError(Code.UNREACHABLE, "no answer")


def test_one_request_is_under_way_at_a_time() -> None:
    inquiry = Inquiry(SETTINGS)
    assert inquiry.is_due(0.0)
    inquiry.asked("first")
    assert not inquiry.is_due(9.0)
    with pytest.raises(AssertionError, match="one request at a time"):
        inquiry.asked("second")


def test_the_outcome_of_a_recorded_request() -> None:
    inquiry = Inquiry(SETTINGS)
    inquiry.asked("first")
    assert inquiry.answered("first", None, 0.0) is Outcome.RECORDED


@pytest.mark.parametrize("code", sorted(REFUSALS, key=str))
def test_the_outcome_of_a_refused_request(code: Code) -> None:
    inquiry = Inquiry(SETTINGS)
    inquiry.asked("first")
    assert inquiry.answered("first", MinkaError(code, "a refusal"), 0.0) is Outcome.REFUSED


def test_after_an_unknown_outcome_no_refusal_is_certain() -> None:
    inquiry = Inquiry(SETTINGS)
    outcomes = []
    for error in (UNKNOWN, REFUSED, None):
        request = object()
        inquiry.asked(request)
        outcomes.append(inquiry.answered(request, error, 0.0))
    assert outcomes == [Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.RECORDED]


def test_answers_to_another_request_are_stale() -> None:
    inquiry = Inquiry(SETTINGS)
    assert inquiry.answered("none", None, 0.0) is Outcome.STALE
    first, second = object(), object()
    inquiry.asked(first)
    inquiry.answered(first, UNKNOWN, 0.0)
    inquiry.asked(second)
    assert inquiry.answered(first, None, 0.0) is Outcome.STALE
    assert inquiry.answered(second, None, 0.0) is Outcome.RECORDED


def test_an_answer_to_an_equal_request_is_stale() -> None:
    inquiry = Inquiry(SETTINGS)
    inquiry.asked(["a"])
    assert inquiry.answered(["a"], None, 0.0) is Outcome.STALE


def test_the_pauses_between_tries_grow_up_to_the_longest() -> None:
    inquiry = Inquiry(SETTINGS)
    pauses = []
    for _ in range(7):
        request = object()
        inquiry.asked(request)
        inquiry.answered(request, UNKNOWN, 0.0)
        pauses.append(inquiry.due_at)
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_only_the_listed_refusals_are_certain() -> None:
    inquiry = Inquiry(SETTINGS, frozenset({Code.NOT_LEADER}))
    inquiry.asked("first")
    assert inquiry.answered("first", REFUSED, 0.0) is Outcome.UNKNOWN
