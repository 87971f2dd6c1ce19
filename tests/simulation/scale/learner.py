"""A fake learner of the Raft group: it accepts all entries, but keeps only the index of the last one."""

from collections.abc import Callable
from typing import Final

from minka.v1.raft_pb2 import (
    MSG_APP,
    MSG_APP_RESP,
    MSG_HEARTBEAT,
    MSG_HEARTBEAT_RESP,
    MSG_SNAP,
    Message,
    RaftMessageBatch,
)
from tests.simulation.scale.timeline import Timeline

_SYNC_S: Final = 0.001


class FakeLearner:
    """Answers each batch of the leader's messages with one batch of answers, which `answer` sends to the leader."""

    def __init__(self, raft_id: int, last: int, timeline: Timeline, answer: Callable[[int, bytes], None]) -> None:
        self.last = last  # the index of its last entry
        self._raft_id = raft_id
        self._timeline = timeline
        self._answer = answer

    def hear(self, content: bytes) -> None:
        """Answer messages that have arrived from the leader."""
        answers, to, delay = RaftMessageBatch(), 0, 0.0
        for message in RaftMessageBatch.FromString(content).messages:
            answer = self._answer_to(message)
            if answer is not None:
                answers.messages.append(answer)
                to = message.from_id
            if message.type in (MSG_APP, MSG_SNAP):
                delay = _SYNC_S
        if to:
            self._timeline.after(delay, self._answer, to, answers.SerializeToString())

    def _answer_to(self, message: Message) -> Message | None:
        answer = Message(to=message.from_id, from_id=self._raft_id, term=message.term)
        if message.type == MSG_HEARTBEAT:
            answer.type, answer.context = MSG_HEARTBEAT_RESP, message.context
        elif message.type == MSG_APP:
            answer.type, answer.index = MSG_APP_RESP, message.index + len(message.entries)
            if message.index > self.last:
                answer.index, answer.reject, answer.reject_hint = message.index, True, self.last
            else:
                self.last = max(self.last, answer.index)
        elif message.type == MSG_SNAP:
            self.last = max(self.last, message.snapshot.metadata.index)
            answer.type, answer.index = MSG_APP_RESP, self.last
        else:
            return None
        return answer
