"""Delays messages that only tell followers the commit index. A caller that waited for a commit often proposes its next
command at once, and the message with the new entry has the commit index, too. So a message without entries waits for
such an entry for a few rounds of the loop. This costs much less than the message and its answer.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from minka.v1.raft_pb2 import MSG_APP, Message

# In the first round, the committed entries are applied. In the second round, the proposer gets its answer, and proposes
# again. In the third round, Raft gets the proposal, perhaps only after the check of this round.
_ROUNDS: Final = 4


class CommitNews:
    """The waiting messages, at most one to a node: a later message replaces it, since it has a newer commit index."""

    def __init__(self, send: Callable[[Sequence[Message]], None]) -> None:
        self._send = send
        self._waiting: dict[int, Message] = {}

    def without(self, messages: Iterable[Message]) -> list[Message]:
        """The messages to send now. The others are sent later, unless entries go to the same node before."""
        others = []
        for message in messages:
            if message.type != MSG_APP:
                others.append(message)
            elif message.entries:
                self._waiting.pop(message.to, None)
                others.append(message)
            else:
                is_first = not self._waiting
                self._waiting[message.to] = message
                if is_first:
                    self._after_round(_ROUNDS)
        return others

    def _after_round(self, left: int) -> None:
        if not self._waiting:
            return
        if left:
            asyncio.get_running_loop().call_soon(self._after_round, left - 1)
        else:
            messages, self._waiting = list(self._waiting.values()), {}
            self._send(messages)
