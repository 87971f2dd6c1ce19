"""python -m tests.simulation: replay a seed, run many, or show that bugs are found."""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import Final

from tests.simulation.mutations import MAX_SEEDS, MUTATIONS, Mutation
from tests.simulation.run import WORLDS, Failure, run
from tests.simulation.trace import Outcome

_PROGRESS: Final = 500  # seeds


def main() -> int:
    """0: nothing was found, or with --mutate everything."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, metavar="N", help="run one seed")
    what.add_argument("--seeds", type=_range, metavar="A..B", help="run the seeds A to B-1")
    what.add_argument("--mutate", action="store_true", help="put each known bug into the code, and find it")
    parser.add_argument("--world", choices=sorted(WORLDS), help="only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="with --seeds or --mutate (default 1)")
    arguments = parser.parse_args()
    worlds = [arguments.world] if arguments.world else sorted(WORLDS)
    if arguments.mutate:
        return _mutate(arguments.processes)
    if arguments.seeds is not None:
        return _many(worlds, arguments.seeds, arguments.processes)
    return _one(worlds, arguments.seed, trace=arguments.trace)


def _say(what: object) -> None:
    print(what, flush=True)  # noqa: T201 - for the person who runs it


def _range(text: str) -> range:
    first, _, end = text.partition("..")
    return range(int(first), int(end))


def _one(worlds: list[str], seed: int, *, trace: bool) -> int:
    failed = False
    for world in worlds:
        outcome = run(world, seed, _say if trace else None)
        failed |= isinstance(outcome, Failure)
        if isinstance(outcome, Outcome):
            _say(f"seed {seed} of the {world} world: {outcome.steps} steps, digest {outcome.digest}, no violation")
        else:
            _say(outcome)
    return int(failed)


def _many(worlds: list[str], seeds: range, processes: int) -> int:
    jobs = [(world, seed) for seed in seeds for world in worlds]
    failures, began = 0, time.monotonic()
    for done, outcome in enumerate(_map_runs(jobs, processes), 1):
        if isinstance(outcome, Failure):
            failures += 1
            _say(outcome)
        if done % _PROGRESS == 0 or done == len(jobs):
            seconds = time.monotonic() - began
            _say(f"{done} of {len(jobs)} runs in {seconds:.0f} s, {failures} with a violation")
    return int(failures > 0)


def _map_runs(jobs: list[tuple[str, int]], processes: int) -> Iterator[Outcome | Failure]:
    if processes == 1:
        yield from (run(world, seed) for world, seed in jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(_job, jobs, chunksize=8)


def _job(job: tuple[str, int]) -> Outcome | Failure:
    return run(*job)


def find(mutation: Mutation) -> tuple[Mutation, Failure | None, float]:
    """The first seed that finds the bug, and the seconds that took."""
    began = time.monotonic()
    with mutation.applied():
        for seed in range(MAX_SEEDS):
            outcome = run(mutation.world, seed)
            if isinstance(outcome, Failure):
                return mutation, outcome, time.monotonic() - began
    return mutation, None, time.monotonic() - began


def _find_named(name: str) -> tuple[str, Failure | None, float]:
    found = find(next(m for m in MUTATIONS if m.name == name))
    return (found[0].name, *found[1:])


def _mutate(processes: int) -> int:
    _say(f"{'mutation':<52} world  seed  found by")
    missed = 0
    names = [mutation.name for mutation in MUTATIONS]
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        for name, failure, _ in pool.imap(_find_named, names, chunksize=1):
            world = next(m.world for m in MUTATIONS if m.name == name)
            if failure is None:
                missed += 1
                _say(f"{name:<52} {world:<5}     -  NOT FOUND in {MAX_SEEDS} seeds")
            else:
                _say(f"{name:<52} {world:<5} {failure.seed:>5}  {failure.invariant}")
    _say(f"{len(names) - missed} of {len(names)} mutations found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
