"""Histories of one register as clients see them, and the events in them."""

import random
from collections.abc import Sequence

from tests.cluster.linearizability import Event, Kind, Outcome

KEY = b"k"
UNKNOWN, REFUSED = Outcome.UNKNOWN, Outcome.REFUSED


def put(value: bytes | None, called: float, returned: float, outcome: Outcome = Outcome.OK) -> Event:
    return Event(KEY, Kind.WRITE, value, called, returned, outcome)


def get(value: bytes | None, called: float, returned: float, outcome: Outcome = Outcome.OK) -> Event:
    return Event(KEY, Kind.READ, value, called, returned, outcome)


def recorded(rng: random.Random, operations: int, clients: int, span: float) -> list[Event]:
    """The events that clients see of a register, which does one operation at a time. Each operation with an answer
    takes effect between its call and the answer.
    """
    free = [0.0] * clients
    planned = []
    for number in range(operations):
        client = rng.randrange(clients)
        called = free[client] + rng.random()
        free[client] = called + rng.random() * span
        takes_effect = called + rng.random() * (free[client] - called)
        outcome = rng.choices(list(Outcome), weights=[7, 1, 2])[0]
        if outcome is UNKNOWN:
            takes_effect += rng.choice([0.0, 5.0, 1e9])
        planned.append((takes_effect, called, free[client], number, rng.random(), outcome))
    value: bytes | None = None
    history = []
    for _, called, returned, number, choice, outcome in sorted(planned):
        if choice < 0.5:
            history.append(get(value, called, returned, outcome))
            continue
        written = b"%d" % number if choice < 0.85 else None
        history.append(put(written, called, returned, outcome))
        if outcome is not REFUSED:
            value = written
    return history


def scrambled(rng: random.Random, history: Sequence[Event]) -> list[Event]:
    """Let some of the reads find other values. The result may or may not be linearizable."""
    values = [e.value for e in history if e.kind is Kind.WRITE] + [None]
    return [
        get(rng.choice(values), e.called, e.returned, e.outcome) if e.kind is Kind.READ and rng.random() < 0.4 else e
        for e in history
    ]
