"""Decides commands without a controller."""

from collections.abc import Iterator

from minka.v1.records_pb2 import Record
from minkad.core.controller.decide import decide
from minkad.core.controller.decision import Command
from minkad.core.state import State


def records_of(state: State, command: Command, now_ms: int) -> Iterator[Record]:
    """The records that follow from the command. Each has to be applied before the next is asked for."""
    for piece in decide(state, command, now_ms):
        yield from piece


def decided(state: State, command: Command, now_ms: int) -> list[Record]:
    """All of them; `state` stays as it is. Raises MinkaError."""
    scratch, records = state.copy(), list[Record]()
    for record in records_of(scratch, command, now_ms):
        scratch.apply(record)
        records.append(record)
    return records
