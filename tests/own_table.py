"""A node's own copy of the table, for parts that only look into it."""

from dataclasses import dataclass

from minkad.core.state import State


@dataclass
class Table:
    """An `OwnTable`."""

    state: State
