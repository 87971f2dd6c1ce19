"""Finds out which node sent messages."""

from collections.abc import Iterable
from typing import Final

from minka.v1.raft_pb2 import MSG_PROP, MSG_READ_INDEX, MSG_TRANSFER_LEADER, Message
from minkad.core.raft.types import NONE

# A follower passes these on to its leader unchanged: `from_id` is the node that asked, or that is to lead.
_PASSED_ON: Final = (MSG_PROP, MSG_READ_INDEX, MSG_TRANSFER_LEADER)


def sender_of(messages: Iterable[Message]) -> int:
    """The raft id of the node that sends all these messages; NONE if they don't tell."""
    return next((m.from_id for m in messages if m.type not in _PASSED_ON), NONE)
