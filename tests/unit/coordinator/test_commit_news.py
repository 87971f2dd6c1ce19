"""A message that has only a new commit index waits a moment: the leader may send entries meanwhile, and a message with
entries also has the index.
"""

import asyncio
from collections.abc import Sequence

from minka.v1.raft_pb2 import MSG_APP, MSG_HEARTBEAT, Entry, Message, MessageType
from minkad.coordinator.commit_news import CommitNews

ROUNDS = 10  # rounds of the loop: more than a message waits


def message(to: int, commit: int, *entries: Entry, type_: MessageType.ValueType = MSG_APP) -> Message:
    return Message(type=type_, to=to, commit=commit, entries=entries)


async def rounds(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_commit_index_is_sent_soon_if_no_entries_follow() -> None:
    sent: list[Message] = []
    news = CommitNews(sent.extend)
    assert news.without([message(2, 5), message(3, 5)]) == []
    assert news.without([message(2, 6)]) == []
    await rounds(1)
    assert not sent, "they wait a little"
    await rounds(ROUNDS)
    assert sent == [message(2, 6), message(3, 5)], "each node gets only its newest message, once"
    sent.clear()
    news.without([message(2, 7)])
    await rounds(ROUNDS)
    assert sent == [message(2, 7)]


async def test_a_message_with_entries_replaces_the_one_with_the_commit_index() -> None:
    sent: list[Sequence[Message]] = []
    news = CommitNews(sent.append)
    news.without([message(2, 5), message(3, 5)])
    await rounds(3)
    with_entries = message(2, 5, Entry(data=b"a"))
    assert news.without([with_entries]) == [with_entries]
    await rounds(ROUNDS)
    assert sent == [[message(3, 5)]], "node 2 has the index from the message with entries"


async def test_other_messages_are_sent_at_once() -> None:
    sent: list[Sequence[Message]] = []
    news = CommitNews(sent.append)
    others = [message(2, 5, type_=MSG_HEARTBEAT), message(3, 5, Entry(data=b"a"))]
    assert news.without([*others, message(2, 5)]) == others
    await rounds(ROUNDS)
    assert sent == [[message(2, 5)]]
