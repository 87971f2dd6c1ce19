"""Whole simulated runs; see docs/simulation.md."""

import os
import subprocess
import sys

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.run import Failure, run

_QUICK = ("forget the vote on step-down", "keep entries that the leader does not have")


@pytest.mark.seeds(12)
def test_no_invariant_of_duties_is_violated(seed: int) -> None:
    outcome = run("duties", seed)
    assert not isinstance(outcome, Failure), str(outcome)


@pytest.mark.seeds(40)
def test_no_invariant_of_loads_is_violated(seed: int) -> None:
    outcome = run("loads", seed)
    assert not isinstance(outcome, Failure), str(outcome)


@pytest.mark.seeds(120)
@pytest.mark.parametrize("world", ["full", "raft"])
def test_no_invariant_is_violated(world: str, seed: int) -> None:
    outcome = run(world, seed)
    assert not isinstance(outcome, Failure), str(outcome)


_SEEDS_THAT_FOUND_BUGS = (
    813460,  # a leader acted on the row in a refusal, which was not recorded yet, and acknowledged a write by it
    804259,  # a node whose answer to joining was lost never heard that it has to register as a new process
    810283,
    810697,
    810816,
    812722,
    2012530,  # a follower joined before it had cut what its leader, elected uncleanly, lacked
    2000076,  # a follower never heard of a hand-over by a leader that had not said yet that it leads
    2001169,  # a member asked a silent node who controls, for long, and the controller had come back
    2001853,  # a node was failed that waited for its registration to be recorded, on slow disks
    2000929,  # a controller that began once more in its term did not reckon with what it had granted before
    2001978,  # an active controller was deposed, and sent a snapshot before it had noticed
    2019140,  # word of a dead process let a snapshot in, ahead of a change of the voters that was being applied
    1000169,  # a node saved its state while a snapshot of the leader's took the place of its log
)


@pytest.mark.parametrize("seed", _SEEDS_THAT_FOUND_BUGS)
def test_what_was_found_once_is_not_found_again(seed: int) -> None:
    outcome = run("full", seed)
    assert not isinstance(outcome, Failure), str(outcome)


@pytest.mark.parametrize(("world", "seed"), [("raft", 7), ("full", 7), ("full", 2001066), ("duties", 7), ("loads", 7)])
def test_a_seed_replays_exactly(world: str, seed: int) -> None:
    """In another process too, where sets of names have another order."""
    command = [sys.executable, "-m", "tests.simulation", "--world", world, "--seed", str(seed), "--trace"]
    runs = [
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": hashing}, capture_output=True, check=True).stdout
        for hashing in ("1", "2")
    ]
    assert b"no violation" in runs[0]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if m.name in _QUICK], ids=lambda m: m.name)
def test_bugs_are_found(mutation: Mutation) -> None:
    with mutation.applied():
        found = next((seed for seed in range(50) if isinstance(run(mutation.world, seed), Failure)), None)
    assert found is not None
    assert not isinstance(run(mutation.world, found), Failure), "it is the mutation that was found"
