"""This node's own copy of the table."""

from typing import Protocol

from minkad.core.state.state import State


class OwnTable(Protocol):
    """The part of the node that applies the Raft log."""

    @property
    def state(self) -> State:
        """The table as of the last applied entry. Don't keep the object: a snapshot replaces it."""
