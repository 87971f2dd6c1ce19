"""Measures 100,000 duties on 200 shards: the time to create and attach them, and the time for which a duty is on no
shard during a planned hand-over, or after its shard has died.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from benchmarks.duties_worker import PALLET, Shards
from benchmarks.measure import MINKA, Goal, Report, Sample, main, percentile
from benchmarks.processes import Group, Talk
from minka.duties import Client, changes
from minka.testing.local_cluster import LocalCluster
from minkad.config.schema import Shards as Settings

NODES: Final = 3
PAYLOAD: Final = 1024  # bytes
BATCH: Final = 1_000
PROCESSES: Final = 4  # processes that share the shards

_TIMEOUT_S: Final = 240.0
_LOOK_S: Final = 0.05
_QUIET_S: Final = 3.0
_HAND_OVER_S: Final = 0.3
_AFTER_CLEARANCE_S: Final = 1.0


@dataclass(frozen=True)
class Size:
    """The numbers of duties and shards. The victim, which is the shard that dies, has `victim` duties."""

    duties: int
    shards: int
    victim: int

    def capacity(self, *, victim: bool) -> int:
        """The capacity of a shard: ten times its share, so that others have room when a shard is gone."""
        return 10 * (self.victim if victim else (self.duties - self.victim) // (self.shards - 1))


FULL: Final = Size(100_000, 200, 1_000)
QUICK: Final = Size(5_000, 20, 250)


def run(report: Report) -> None:
    """Measure all cases, and add them to the report."""
    size = QUICK if report.options.quick else FULL
    clearance = Settings().clearance_ms / 1000
    report.notes.append(
        f"{size.duties:,} duties with payloads of {PAYLOAD} bytes, {BATCH:,} a batch, on {size.shards} shards in "
        f"{PROCESSES + 1} processes, beside {NODES} nodes; minkad's defaults (clearance {clearance:g} s). "
        f"The delegates do nothing. A shard joins and is given about {size.victim:,} duties; then it is killed. "
        "No peer: none of those that hand out work is packaged for this machine."
    )
    with LocalCluster(NODES) as cluster, Group("shards") as group, Client(cluster.endpoints, timeout=60) as client:
        client.create_pallet(PALLET)
        _create(report, client, size)
        hosts = Hosts(group, cluster.endpoints, size)
        began = time.monotonic()
        hosts.start_all()
        _wait("all duties are attached", lambda: hosts.held() == size.duties)
        report.add(
            report.case(f"all attached to {size.shards - 1} shards that start", "s"),
            MINKA,
            Sample(time.monotonic() - began),
        )
        _settle(hosts)
        for number in range(report.options.rounds):
            _hand_over(report, hosts, client, f"victim-{number}")
            _die(report, hosts, clearance + _AFTER_CLEARANCE_S)


def _create(report: Report, client: Client, size: Size) -> None:
    took: list[float] = []
    began = time.monotonic()
    for first in range(0, size.duties, BATCH):
        numbers = range(first, min(first + BATCH, size.duties))
        begun = time.monotonic()
        client.change([changes.create(PALLET, f"duty-{number}", os.urandom(PAYLOAD)) for number in numbers])
        took.append(time.monotonic() - begun)
    seconds = time.monotonic() - began
    ordered = sorted(took)
    sample = Sample(seconds, percentile(ordered, 50), percentile(ordered, 99), ordered[-1])
    report.add(
        report.case(f"create {size.duties:,}, one batch after the other", "s", goal=Goal(at_most=20)), MINKA, sample
    )


class Hosts:
    """The processes with shards, and the calls that their delegates have noted. The victim has its own process."""

    def __init__(self, group: Group, endpoints: Sequence[str], size: Size) -> None:
        self.size = size
        self.attached: dict[int, tuple[int, float]] = {}  # by duty: the epoch and the time of the last attach
        self.gaps: list[float] = []  # seconds from a detach until the duty was attached to another shard
        self._group = group
        self._endpoints = list(endpoints)
        self._released: dict[int, float] = {}  # by duty: the time of its detach, if it isn't attached again yet
        self._victims: set[int] = set()  # the victim's duties
        self._talks: list[Talk] = []
        self._victim: Talk | None = None

    def start_all(self) -> None:
        """Start all shards except the victim."""
        names = [f"shard-{number}" for number in range(self.size.shards - 1)]
        for number in range(PROCESSES):
            self._talks.append(
                self._start(f"shards-{number}", names[number::PROCESSES], self.size.capacity(victim=False))
            )

    def start_victim(self, name: str) -> None:
        """Start the victim, a shard in a separate process."""
        self._victim = self._start(name, [name], self.size.capacity(victim=True))
        self._victims.clear()

    def _start(self, log: str, names: list[str], capacity: int) -> Talk:
        talk = self._group.start_talking(log, Shards(self._endpoints, names, capacity).command())
        assert talk.hear() == "ready", "it says so first"
        return talk

    def kill_victim(self) -> tuple[float, set[int]]:
        """Kill the victim; returns the time of its death, and its duties."""
        assert self._victim is not None, "it was started"
        self.look()
        killed = time.monotonic()
        self._group.kill(self._victim.process)
        self._victim = None
        return killed, set(self._victims)

    def held(self) -> int:
        """The number of duties on all shards, according to their delegates."""
        return sum(_ask(talk, "held") for talk in self._all())

    def victims(self) -> int:
        """The number of duties that the victim has."""
        return len(self._victims)

    def look(self) -> int:
        """Read the calls that delegates have noted since the last look; returns the number of calls."""
        calls = [
            (when, method, duty, epoch, talk)
            for talk in self._all()
            for method, duty, epoch, when in _ask(talk, "calls")
        ]
        calls.sort(key=itemgetter(0))
        for when, method, duty, epoch, talk in calls:
            of_victim = talk is self._victim
            if method == "detach":
                self._released[duty] = when
                self._victims -= {duty} if of_victim else set()
                continue
            self.attached[duty] = epoch, when
            self._victims |= {duty} if of_victim else set()
            if duty in self._released:
                self.gaps.append(when - self._released.pop(duty))
        return len(calls)

    def _all(self) -> list[Talk]:
        return self._talks if self._victim is None else [*self._talks, self._victim]


def _ask(talk: Talk, what: str) -> Any:
    talk.say(what)
    return talk.hear()


def _wait(what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_TIMEOUT_S:g} s: {what}")
        time.sleep(_LOOK_S)


def _settle(hosts: Hosts) -> None:
    """Wait until all duties are attached and no duty has moved for a while."""
    quiet_since = time.monotonic()

    def settled() -> bool:
        nonlocal quiet_since
        if hosts.look() or hosts.held() != hosts.size.duties:
            quiet_since = time.monotonic()
        return time.monotonic() > quiet_since + _QUIET_S

    _wait("all duties are attached, and nothing moves", settled)


def _hand_over(report: Report, hosts: Hosts, client: Client, name: str) -> None:
    """Start a shard, which gets its share of the duties from the others, and measure the hand-overs."""
    hosts.gaps.clear()
    began = time.monotonic()
    hosts.start_victim(name)
    _wait("the new shard has its share", lambda: bool(hosts.look()) and hosts.victims() >= 0.9 * hosts.size.victim)
    seconds = time.monotonic() - began
    _settle(hosts)
    gaps = sorted(hosts.gaps)
    case = report.case("gap of a planned hand-over, p99", "s", goal=Goal(at_most=_HAND_OVER_S))
    p50, p99 = percentile(gaps, 50), percentile(gaps, 99)
    if p99 is None:
        raise RuntimeError("nothing was handed over")
    report.add(case, MINKA, Sample(p99, p50, p99, gaps[-1], {"count": len(gaps)}))
    report.add(
        report.case("a shard joins and has its share", "s"), MINKA, Sample(seconds, details={"count": hosts.victims()})
    )
    (summary,) = client.pallets([PALLET])
    times = summary.hand_overs
    report.add(
        report.case("the same as minkactl pallets shows it, p99", "s"),
        MINKA,
        Sample(
            times.p99_ms / 1000, times.p50_ms / 1000, times.p99_ms / 1000, times.max_ms / 1000, {"count": times.count}
        ),
    )


def _die(report: Report, hosts: Hosts, at_most: float) -> None:
    """Kill the victim, and measure the time until all its duties are attached to other shards."""
    killed, duties = hosts.kill_victim()

    def resumed() -> bool:
        hosts.look()
        return all(hosts.attached[duty][1] > killed for duty in duties)

    _wait("its duties run elsewhere", resumed)
    took = sorted(hosts.attached[duty][1] - killed for duty in duties)
    case = report.case("a shard is killed: its duties run elsewhere", "s", goal=Goal(at_most=at_most))
    report.add(
        case, MINKA, Sample(took[-1], percentile(took, 50), percentile(took, 99), took[-1], {"count": len(took)})
    )
    _settle(hosts)


if __name__ == "__main__":
    main("duties", __doc__, run)
