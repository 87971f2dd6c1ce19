"""Work that several processes share: many seeds, or the search for each mutation."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tests.simulation.mutations import MAX_SEEDS, MUTATIONS
from tests.simulation.run import Failure, run
from tests.simulation.trace import Outcome

J = TypeVar("J")
R = TypeVar("R")


def map_jobs(function: Callable[[J], R], jobs: Sequence[J], processes: int, chunk: int) -> Iterator[R]:
    """Run the jobs, `chunk` at a time in each process; yields the results in the order of the jobs."""
    if processes == 1:
        yield from map(function, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(function, jobs, chunksize=chunk)


def run_job(job: tuple[str, int]) -> Outcome | Failure:
    """Run one seed of a world."""
    return run(*job)


def find(number: int) -> Failure | None:
    """Return the failure of the first seed that finds this mutation; None if no seed does."""
    mutation = MUTATIONS[number]
    with mutation.applied():
        for seed in range(MAX_SEEDS):
            outcome = run(mutation.world, seed)
            if isinstance(outcome, Failure):
                return outcome
    return None
