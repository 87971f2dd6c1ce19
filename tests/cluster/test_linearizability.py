"""Whatever happens to nodes, network and disks: clients see what one store that never fails would show them."""

import contextlib
import gc
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster import operation_checker
from tests.cluster.admin import Admin, Divider, Reassigner
from tests.cluster.history import Recorder, Workers
from tests.cluster.linearizability import Outcome, Result, Verdict, check
from tests.cluster.nemesis import (
    DISK_FAULTS,
    KEYSPACE,
    NETWORK_FAULTS,
    PARTITIONS,
    PROCESS_FAULTS,
    RANGES,
    REDIS,
    Lab,
    Nemesis,
    keys_of_all_partitions,
    laboratory,
)
from tests.cluster.operation_history import OperationRecorder
from tests.cluster.redis_history import RedisRecorder
from tests.cluster.undo import Undo

Fault = Callable[[Nemesis], None]
log = logging.getLogger(__name__)
FAULTS = (*PROCESS_FAULTS, *NETWORK_FAULTS, *DISK_FAULTS)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Undo() as undo, laboratory(undo) as lab:
        yield lab


def skip_what_is_not_permitted(lab: Lab, faults: tuple[Fault, ...]) -> None:
    if (lab.network is None and set(faults) & set(NETWORK_FAULTS)) or (
        not lab.disks and set(faults) & set(DISK_FAULTS)
    ):
        pytest.skip(lab.missing)


@pytest.mark.seeds(1)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_histories_are_linearizable(lab: Lab, fault: Fault, seed: int) -> None:
    """With odd seeds, replicas move meanwhile."""
    skip_what_is_not_permitted(lab, (fault,))
    run(lab, f"{fault.__name__}-{seed}", [fault], reassign=seed % 2 == 1)


@pytest.mark.seeds(1)
@pytest.mark.timeout(120)
def test_histories_are_linearizable_through_a_reassignment_and_all_sorts_of_faults(lab: Lab, seed: int) -> None:
    permitted = [*PROCESS_FAULTS, *(NETWORK_FAULTS if lab.network else ()), *(DISK_FAULTS if lab.disks else ())]
    run(lab, f"all-{seed}", random.Random(seed).sample(permitted, 3), reassign=True)


@pytest.mark.seeds(2)
@pytest.mark.timeout(120)
def test_histories_are_linearizable_while_ranges_are_split_and_merged(lab: Lab, seed: int) -> None:
    """Two of the permitted faults, one after the other."""
    permitted = [*PROCESS_FAULTS, *(NETWORK_FAULTS if lab.network else ()), *(DISK_FAULTS if lab.disks else ())]
    faults = [permitted[number % len(permitted)] for number in (2 * seed, 2 * seed + 1)]
    rng = random.Random(f"ranges-{seed}")
    keys = [b"%d-%04d" % (seed, number) for number in rng.sample(range(10_000), PARTITIONS)]
    judge(lab, f"ranges-{seed}", faults, rng, keys, RANGES, Divider(lab, rng, keys))


@pytest.mark.seeds(1)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_operations_are_linearizable(lab: Lab, fault: Fault, seed: int) -> None:
    """Conditions, versions, counters and lifetimes. With odd seeds, replicas move meanwhile."""
    skip_what_is_not_permitted(lab, (fault,))
    name = f"operations-{fault.__name__}-{seed}"
    rng = random.Random(name)
    admin = Reassigner(lab, rng) if seed % 2 == 1 else None
    judge(lab, name, [fault], rng, keys_of_all_partitions(name), KEYSPACE, admin, OPERATIONS)


@pytest.mark.seeds(1)
@pytest.mark.timeout(120)
def test_operations_are_linearizable_while_ranges_are_split_and_merged(lab: Lab, seed: int) -> None:
    permitted = [*PROCESS_FAULTS, *(NETWORK_FAULTS if lab.network else ()), *(DISK_FAULTS if lab.disks else ())]
    rng = random.Random(f"operations-{seed}")
    faults = rng.sample(permitted, 2)
    keys = [b"%d-%04d" % (seed, number) for number in rng.sample(range(10_000, 20_000), PARTITIONS)]
    judge(lab, f"operations-ranges-{seed}", faults, rng, keys, RANGES, Divider(lab, rng, keys), OPERATIONS)


@pytest.fixture
def collected() -> Iterator[None]:
    """redis-py forgets connections to nodes that it no longer knows without closing them; that is said in this test."""
    yield
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("collected")
@pytest.mark.seeds(1)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_redis_clients_see_is_linearizable(lab: Lab, fault: Fault, seed: int) -> None:
    """The cluster client of redis-py. With odd seeds, replicas move meanwhile."""
    skip_what_is_not_permitted(lab, (fault,))
    name = f"redis-{fault.__name__}-{seed}"
    rng = random.Random(name)
    admin = Reassigner(lab, rng) if seed % 2 == 1 else None
    judge(lab, name, [fault], rng, keys_of_all_partitions(name, REDIS), REDIS, admin, REDIS_CLIENTS)


def run(lab: Lab, name: str, faults: list[Fault], *, reassign: bool) -> None:
    """Judge the history of a keyspace by hash."""
    rng = random.Random(name)
    admin = Reassigner(lab, rng) if reassign else None
    judge(lab, name, faults, rng, keys_of_all_partitions(name), KEYSPACE, admin)


@dataclass(frozen=True, slots=True)
class Work:
    """What clients do, at which addresses, and how it is judged."""

    workers: type[Workers[Any]]
    check: Callable[[list[Any]], Result]
    endpoints: Callable[[Lab], Sequence[str]] = lambda lab: lab.cluster.endpoints


REGISTERS = Work(Recorder, check)
OPERATIONS = Work(OperationRecorder, operation_checker.check)
REDIS_CLIENTS = Work(
    RedisRecorder, operation_checker.check, lambda lab: [node.data_address for node in lab.cluster.nodes.values()]
)


def judge(
    lab: Lab,
    name: str,
    faults: list[Fault],
    rng: random.Random,
    keys: list[bytes],
    keyspace: str,
    admin: Admin | None,
    work: Work = REGISTERS,
) -> None:
    """Record what clients see before, during and after the faults, and judge it."""
    lab.repair()
    with work.workers(lab.loop, work.endpoints(lab), keyspace, keys, rng.randrange(2**32)) as recorder:
        recorder.wait_written()
        nemesis = Nemesis(lab, rng, keys, keyspace)
        with admin if admin is not None else contextlib.nullcontext():
            for fault in faults:
                fault(nemesis)
        lab.wait_well()
        recorder.wait_written()
        history = recorder.stop()
    result = work.check(history)
    done = f", {admin.succeeded} of {admin.started} operations done" if admin else ""
    log.info("%s: %s%s", name, summary(history), done)
    assert result.verdict is Verdict.LINEARIZABLE, f"{result.verdict.value}: {result.key!r}: {result.reason}"


def summary(history: list[Any]) -> str:
    """How many operations of each kind had which outcome."""
    counts = Counter((event.kind, event.outcome) for event in history)
    for kind in {event.kind for event in history}:
        assert counts[kind, Outcome.OK], f"no {kind.value} succeeded"
    return ", ".join(
        f"{count} {kind.value}s {outcome.value}" for (kind, outcome), count in sorted(counts.items(), key=str)
    )
