"""Drops answers to appends that add nothing to the other answers."""

from collections.abc import Iterable, Sequence

from minka.v1.raft_pb2 import MSG_APP_RESP, Message


def without_repeated_answers(messages: Sequence[Message]) -> list[Message]:
    """The messages, with only the highest acceptance and the last rejection of one leader's appends.

    A leader sends many appends ahead. When one of them is lost or overtaken, the node rejects all later appends, and
    each rejection can make the leader send again. With slow disks, these would be more messages than a node can handle.
    The highest acceptance implies the others, and Raft tolerates the loss of messages.
    """
    if len(messages) < 2:
        return list(messages)
    kept = {(m.to, m.reject): m for m in _rising(messages)}
    return [m for m in messages if m.type != MSG_APP_RESP or kept[m.to, m.reject] is m]


def _rising(messages: Iterable[Message]) -> list[Message]:
    """The answers, with acceptances in the order of their index, so that the highest comes last."""
    answers = [m for m in messages if m.type == MSG_APP_RESP]
    return sorted(answers, key=lambda m: 0 if m.reject else m.index)
