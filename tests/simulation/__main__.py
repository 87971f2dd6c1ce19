"""python -m tests.simulation: replay one seed, run many seeds, or check that the simulation finds known bugs."""

import argparse
import sys
import time
from typing import Final

from tests.simulation.jobs import find, map_jobs, run_job
from tests.simulation.mutations import MAX_SEEDS, MUTATIONS
from tests.simulation.run import WORLDS, Failure, run
from tests.simulation.trace import Outcome

_PROGRESS: Final = 500  # seeds


def main() -> int:
    """Return the exit status. It is 0 if no run found a bug or, with --mutate, if the runs found every planted bug."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, metavar="N", help="run one seed")
    what.add_argument("--seeds", type=_range, metavar="A..B", help="run the seeds A to B-1")
    what.add_argument("--mutate", action="store_true", help="plant each known bug in the code, and look for it")
    parser.add_argument("--world", choices=sorted(WORLDS), help="run only this world")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="for --seeds or --mutate (default 1)")
    arguments = parser.parse_args()
    worlds = [arguments.world] if arguments.world else sorted(WORLDS)
    if arguments.mutate:
        return _mutate(worlds, arguments.processes)
    if arguments.seeds is not None:
        return _many(worlds, arguments.seeds, arguments.processes)
    return _one(worlds, arguments.seed, trace=arguments.trace)


def _say(what: object) -> None:
    print(what, flush=True)  # noqa: T201 - for the person who runs this program


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
    for done, outcome in enumerate(map_jobs(run_job, jobs, processes, 8), 1):
        if isinstance(outcome, Failure):
            failures += 1
            _say(outcome)
        if done % _PROGRESS == 0 or done == len(jobs):
            seconds = time.monotonic() - began
            _say(f"{done} of {len(jobs)} runs in {seconds:.0f} s, {failures} with a violation")
    return int(failures > 0)


def _mutate(worlds: list[str], processes: int) -> int:
    _say(f"{'mutation':<52} world  seed  found by")
    missed = 0
    numbers = [number for number, mutation in enumerate(MUTATIONS) if mutation.world in worlds]
    for number, failure in zip(numbers, map_jobs(find, numbers, processes, 1), strict=True):
        mutation = MUTATIONS[number]
        row = f"{mutation.name:<52} {mutation.world:<5}"
        missed += failure is None
        _say(
            f"{row} {failure.seed:>5}  {failure.invariant}"
            if failure
            else f"{row}     -  NOT FOUND in {MAX_SEEDS} seeds"
        )
    _say(f"{len(numbers) - missed} of {len(numbers)} mutations found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
