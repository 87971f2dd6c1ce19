"""Complete simulated runs; see docs/simulation.md."""

import os
import subprocess
import sys

import pytest

from tests.simulation.known_seeds import KNOWN
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.run import Failure, run

_QUICK = ("forget the vote on step-down", "keep entries that the leader does not have")


@pytest.mark.seeds(4)
def test_no_invariant_of_duties_is_violated(seed: int) -> None:
    outcome = run("duties", seed)
    assert not isinstance(outcome, Failure), str(outcome)


@pytest.mark.seeds(10)
def test_no_invariant_of_loads_is_violated(seed: int) -> None:
    outcome = run("loads", seed)
    assert not isinstance(outcome, Failure), str(outcome)


@pytest.mark.seeds(25)
@pytest.mark.parametrize("world", ["full", "raft"])
def test_no_invariant_is_violated(world: str, seed: int) -> None:
    outcome = run(world, seed)
    assert not isinstance(outcome, Failure), str(outcome)


@pytest.mark.parametrize(("world", "seed"), [(world, seed) for world, seeds in KNOWN.items() for seed in seeds])
def test_known_seeds_find_no_violation(world: str, seed: int) -> None:
    outcome = run(world, seed)
    assert not isinstance(outcome, Failure), str(outcome)


@pytest.mark.parametrize(("world", "seed"), [("raft", 7), ("full", 2001066), ("duties", 7), ("loads", 7)])
def test_a_seed_replays_exactly(world: str, seed: int) -> None:
    """A seed also replays exactly in another process, where sets of names have another order."""
    command = [sys.executable, "-m", "tests.simulation", "--world", world, "--seed", str(seed), "--trace"]
    runs = [
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": hashing}, capture_output=True, check=True).stdout
        for hashing in ("1", "2")
    ]
    assert b"no violation" in runs[0]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_mutation_fits_the_code(mutation: Mutation) -> None:
    """All functions that the mutation changes exist. Without this test, only a run with `--mutate` would notice a
    missing one.
    """
    with mutation.applied():
        pass


@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if m.name in _QUICK], ids=lambda m: m.name)
def test_bugs_are_found(mutation: Mutation) -> None:
    with mutation.applied():
        found = next((seed for seed in range(50) if isinstance(run(mutation.world, seed), Failure)), None)
    assert found is not None
    assert not isinstance(run(mutation.world, found), Failure), "without the mutation, the seed finds nothing"
