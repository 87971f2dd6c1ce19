"""Messages that only say how far the log is committed. Whoever waited for that often proposes the next command at once,
and its entry says the same: so such a message waits for it a few rounds of the loop, which take far less than the
message itself, its answer, and what both cost the nodes.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from minka.v1.raft_pb2 import MSG_APP, Message

# In the first what is committed is applied, in the second the proposer is answered and proposes, in the third that
# comes to Raft, perhaps after these messages have had their round.
_ROUNDS: Final = 4


class CommitNews:
    """Those that wait, one at most to a node: Raft bears it that a message is lost when a later one says more."""

    def __init__(self, send: Callable[[Sequence[Message]], None]) -> None:
        self._send = send
        self._waiting: dict[int, Message] = {}

    def without(self, messages: Iterable[Message]) -> list[Message]:
        """The messages that are to be sent now; the others are sent later, unless entries follow."""
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
