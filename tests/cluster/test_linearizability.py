"""While nodes, the network and disks fail, clients see only answers that a single store without faults could give."""

import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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


@dataclass(frozen=True, slots=True)
class Work:
    """A kind of work: the class of the clients that do it, the check of their history, and the addresses to which they
    connect."""

    workers: type[Workers[Any]]
    check: Callable[[list[Any]], Result]
    endpoints: Callable[[Lab], Sequence[str]] = lambda lab: lab.cluster.endpoints


REGISTERS = Work(Recorder, check)
OPERATIONS = Work(OperationRecorder, operation_checker.check)  # conditions, versions, counters and lifetimes
REDIS_CLIENTS = Work(  # the cluster client of redis-py
    RedisRecorder, operation_checker.check, lambda lab: [node.data_address for node in lab.cluster.nodes.values()]
)


class Clients(NamedTuple):
    """Clients that all send the same kind of requests, to the keys of one keyspace."""

    work: Work
    keyspace: str
    keys: list[bytes]


@pytest.mark.seeds(5)
@pytest.mark.timeout(120)
def test_histories_are_linearizable(lab: Lab, seed: int) -> None:
    """Each seed tests one fault: seed 0 the first one, seed 1 the second one, and so on. In every second round through
    all faults, replicas move during the fault.
    """
    fault = FAULTS[seed % len(FAULTS)]
    skip_what_is_not_permitted(lab, (fault,))
    name = f"{fault.__name__}-{seed}"
    rng = random.Random(name)
    admin = Reassigner(lab, rng) if seed // len(FAULTS) % 2 else None
    registers = Clients(REGISTERS, KEYSPACE, keys_of_all_partitions(name))
    operations = Clients(OPERATIONS, KEYSPACE, keys_of_all_partitions(f"operations-{name}"))
    redis = Clients(REDIS_CLIENTS, REDIS, keys_of_all_partitions(name, REDIS))
    judge(lab, name, [fault], rng, admin, registers, operations, redis)


@pytest.mark.seeds(1)
@pytest.mark.timeout(120)
def test_histories_are_linearizable_through_a_reassignment_and_all_sorts_of_faults(lab: Lab, seed: int) -> None:
    permitted = [*PROCESS_FAULTS, *(NETWORK_FAULTS if lab.network else ()), *(DISK_FAULTS if lab.disks else ())]
    name, rng = f"all-{seed}", random.Random(seed)
    registers = Clients(REGISTERS, KEYSPACE, keys_of_all_partitions(name))
    judge(lab, name, rng.sample(permitted, 3), rng, Reassigner(lab, rng), registers)


@pytest.mark.seeds(1)
@pytest.mark.timeout(120)
def test_histories_are_linearizable_while_ranges_are_split_and_merged(lab: Lab, seed: int) -> None:
    """Of the faults that the machine permits, each seed tests two, one after the other."""
    permitted = [*PROCESS_FAULTS, *(NETWORK_FAULTS if lab.network else ()), *(DISK_FAULTS if lab.disks else ())]
    faults = [permitted[number % len(permitted)] for number in (2 * seed, 2 * seed + 1)]
    rng = random.Random(f"ranges-{seed}")
    keys = [b"%d-%04d" % (seed, number) for number in rng.sample(range(10_000), 2 * PARTITIONS)]
    registers = Clients(REGISTERS, RANGES, keys[:PARTITIONS])
    operations = Clients(OPERATIONS, RANGES, keys[PARTITIONS:])
    judge(lab, f"ranges-{seed}", faults, rng, Divider(lab, rng, keys), registers, operations)


def judge(lab: Lab, name: str, faults: list[Fault], rng: random.Random, admin: Admin | None, *clients: Clients) -> None:
    """Record the histories of all clients before, during and after the faults, and judge them. Faults that hit a
    leader hit one that leads a partition with a key of `clients[0]`.
    """
    lab.repair()
    with contextlib.ExitStack() as stack:
        recorders = [
            stack.enter_context(
                one.work.workers(lab.loop, one.work.endpoints(lab), one.keyspace, one.keys, rng.randrange(2**32))
            )
            for one in clients
        ]
        for recorder in recorders:
            recorder.wait_written()
        nemesis = Nemesis(lab, rng, clients[0].keys, clients[0].keyspace)
        with admin if admin is not None else contextlib.nullcontext():
            for fault in faults:
                fault(nemesis)
        lab.wait_well()
        for recorder in recorders:
            recorder.wait_written()
        histories = [recorder.stop() for recorder in recorders]
    if admin is not None:
        log.info("%s: %d of %d operations done", name, admin.succeeded, admin.started)
    for one, history in zip(clients, histories, strict=True):
        log.info("%s, %s: %s", name, one.work.workers.__name__, summary(history))
        result = one.work.check(history)
        assert result.verdict is Verdict.LINEARIZABLE, f"{result.verdict.value}: {result.key!r}: {result.reason}"


def summary(history: list[Any]) -> str:
    """Count the operations by kind and outcome."""
    counts = Counter((event.kind, event.outcome) for event in history)
    for kind in {event.kind for event in history}:
        assert counts[kind, Outcome.OK], f"no {kind.value} succeeded"
    return ", ".join(
        f"{count} {kind.value}s {outcome.value}" for (kind, outcome), count in sorted(counts.items(), key=str)
    )
