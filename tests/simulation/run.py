"""Run one seed of one world, and report the outcome."""

import dataclasses
import gc
import re
import traceback
import warnings
from collections.abc import Callable, Collection
from typing import Final, Protocol

from tests.simulation.duty_world import DutyWorld
from tests.simulation.full_world import FullWorld
from tests.simulation.load_world import LoadWorld
from tests.simulation.raft_world import RaftWorld
from tests.simulation.trace import Outcome, Trace, Violation

SHOWN_EVENTS: Final = 30
_PARTITION: Final = re.compile(r"partition (\d+)")


class World(Protocol):
    """A simulated world: everything in it follows from the seed."""

    def run(self) -> Outcome:
        """Run the world to its end. Raises Violation, or an error of the real code."""

    def stories(self, partition_ids: Collection[int]) -> str:
        """What happened to the replicas of these partitions lately; "" in a world without replicas."""


WORLDS: Final[dict[str, Callable[[int, Trace], World]]] = {
    "duties": DutyWorld,
    "full": FullWorld,
    "loads": LoadWorld,
    "raft": RaftWorld,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A run that found a bug, in the code or in the simulation."""

    world: str
    seed: int
    invariant: str
    text: str
    tail: str
    stories: str = ""  # of the replicas of the partition that the text names

    def __str__(self) -> str:
        return (
            f"{self.tail}\n{self.stories}\nseed {self.seed} of the {self.world} world: {self.invariant}: {self.text}\n"
            f"again, with every event: python -m tests.simulation --seed {self.seed} --world {self.world} --trace"
        )


def run(world: str, seed: int, echo: Callable[[str], None] | None = None) -> Outcome | Failure:
    """Run one seed. Returns a Failure for a violation, or for an error or a warning of the real code. `echo` gets every
    event.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome = _run(world, seed, Trace(echo))
        gc.collect()  # if nobody awaited a coroutine, Python warns of it when it is collected here
    if caught and isinstance(outcome, Outcome):
        return Failure(world, seed, "warning in the code", str(caught[0].message), "")
    return outcome


def _run(world: str, seed: int, trace: Trace) -> Outcome | Failure:
    made = WORLDS[world](seed, trace)
    try:
        return made.run()
    except Violation as violation:
        invariant, text = violation.invariant, violation.text
    except Exception as error:  # noqa: BLE001 - every error of the code is a finding
        kind = "assertion" if isinstance(error, AssertionError) else "exception"
        where = traceback.extract_tb(error.__traceback__)[-1]
        invariant = f"{kind} in the code"
        text = f"{type(error).__name__} in {where.name}, line {where.lineno} of {where.filename}: {error}"
    named = {int(number) for number in _PARTITION.findall(text)}
    return Failure(world, seed, invariant, text, trace.tail(SHOWN_EVENTS), made.stories(named))
