"""Messages that only tell how far the log is committed. Whoever waited for that often proposes the next command at
once, and its entry tells the same. So such a message waits for the entry for a few rounds of the loop, which take far
less than the message itself, its answer, and the cost of both to the nodes.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from minka.v1.raft_pb2 import MSG_APP, Message

# In the first round, committed entries are applied; in the second, the proposer is answered and proposes; in the third,
# the proposal comes to Raft, perhaps after these messages in that round.
_ROUNDS: Final = 4


class CommitNews:
    """The waiting messages, at most one to a node: Raft tolerates the loss of a message if a later one tells more."""

    def __init__(self, send: Callable[[Sequence[Message]], None]) -> None:
        self._send = send
        self._waiting: dict[int, Message] = {}

    def without(self, messages: Iterable[Message]) -> list[Message]:
        """The messages to send now; the others are sent later, unless entries follow."""
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
