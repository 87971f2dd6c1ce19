"""A node leaves out an answer if another answer in the same batch repeats or supersedes it."""

from minka.v1.raft_pb2 import MSG_APP_RESP, MSG_HEARTBEAT_RESP, Message
from minkad.core.raft.answers import without_repeated_answers


def accepted(to: int, index: int) -> Message:
    return Message(type=MSG_APP_RESP, to=to, index=index)


def rejected(to: int, index: int) -> Message:
    return Message(type=MSG_APP_RESP, to=to, index=index, reject=True)


def test_the_highest_acceptance_and_the_last_rejection_are_sent() -> None:
    beat = Message(type=MSG_HEARTBEAT_RESP, to=1)
    messages = [accepted(1, 5), rejected(1, 9), accepted(1, 7), beat, rejected(1, 8), accepted(1, 6), beat]
    assert without_repeated_answers(messages) == [accepted(1, 7), beat, rejected(1, 8), beat]


def test_answers_to_different_nodes_are_all_sent() -> None:
    messages = [accepted(1, 5), accepted(2, 3), rejected(2, 4)]
    assert without_repeated_answers(messages) == messages


def test_a_repeated_acceptance_is_sent_once() -> None:
    assert without_repeated_answers([accepted(1, 5), accepted(1, 5)]) == [accepted(1, 5)]
