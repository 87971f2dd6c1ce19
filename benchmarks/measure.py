"""Collects figures, and shows them in a table and in JSON, one line for each figure."""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import load, machine, usable_processors

MINKA: Final = "minka"
QUIET_LOAD: Final = 0.7  # above this average of the last minute, other work disturbs the figures


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    quick: bool
    json: Path | None

    @property
    def rounds(self) -> int:
        """The number of measurements of each case; the median counts."""
        return 1 if self.quick else 3

    @property
    def seconds(self) -> float:
        """The approximate length of one measurement, in seconds."""
        return 1.0 if self.quick else 3.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of a case. The value is in the case's unit; latencies are in seconds."""

    value: float
    p50_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of Minka's figure. One of three is set: at least `ratio` times the peer's figure, below `at_most`, or at
    least `at_least`. The last two are in the case's unit.
    """

    ratio: float | None = None
    at_most: float | None = None
    at_least: float | None = None

    def met(self, value: float, peer: float | None) -> bool | None:
        """True if the figure `value` meets the goal; None if the peer has no figure."""
        if self.at_most is not None:
            return value < self.at_most
        if self.at_least is not None:
            return value >= self.at_least
        assert self.ratio is not None, "a goal is one of the three"
        return None if not peer else value >= self.ratio * peer

    def __str__(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:,.0f}"
        return f"< {self.at_most:g}" if self.at_most is not None else f">= {self.ratio:g}x"


@dataclass(slots=True)
class Case:
    """One line of the table: a measured quantity, for Minka and at most one peer."""

    name: str
    unit: str
    peer: str = ""
    goal: Goal | None = None
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def median(self, system: str) -> Sample | None:
        """The sample with the median value; of an even number, the lower of the two in the middle."""
        samples = sorted(self.samples.get(system, ()), key=lambda sample: sample.value)
        return samples[(len(samples) - 1) // 2] if samples else None


class Report:
    """Collects samples, and shows them. `absent` has the reason why a peer has no figures."""

    def __init__(self, benchmark: str, options: Options) -> None:
        self.benchmark = benchmark
        self.options = options
        self.absent: dict[str, str] = {}
        self.notes: list[str] = []
        self._cases: dict[tuple[str, str], Case] = {}
        self._load = load()
        self._processors = usable_processors()

    def case(self, name: str, unit: str, peer: str = "", goal: Goal | None = None) -> Case:
        """Return the case with this name and unit. The first call creates it. The table has the cases in the order
        of their creation.
        """
        return self._cases.setdefault((name, unit), Case(name, unit, peer, goal))

    def add(self, case: Case, system: str, sample: Sample) -> None:
        """Add a measurement of a case."""
        case.samples.setdefault(system, []).append(sample)
        say(f"{self.benchmark}: {case.name}: {system} {shown(sample.value)} {case.unit}{latencies(sample)}")

    def finish(self) -> None:
        """Print the table to stdout, and append the JSON lines to the file of --json."""
        print("\n".join(self.lines()), flush=True)
        if self.options.json is not None:
            with self.options.json.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(figure) + "\n" for figure in self.figures())

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table, and the notes."""
        yield f"\n{self.benchmark}"
        head = ("case", "unit", MINKA, "p50/p99 ms", "peer", "", "p50/p99 ms", "ratio", "goal", "", "")
        yield from aligned([head, *(self._row(case) for case in self._cases.values())])
        for peer, reason in self.absent.items():
            yield f"{peer}: {reason}"
        yield from self.notes
        yield (
            f"Median of {self.options.rounds}. Load of the machine {self._load:.2f} before, {load():.2f} after; of its "
            f"{os.cpu_count()} processors {self._processors:.2f} before, {usable_processors():.2f} after."
        )

    def _row(self, case: Case) -> tuple[str, ...]:
        own, peer = case.median(MINKA), case.median(case.peer)
        ratio = f"{own.value / peer.value:.2f}x" if own and peer and peer.value else ""
        met = case.goal.met(own.value, peer.value if peer else None) if case.goal and own else None
        there = shown(peer.value) if peer else ("not installed" if case.peer in self.absent else "")
        goal, verdict = str(case.goal or ""), {True: "met", False: "MISSED", None: ""}[met]
        mine = shown(own.value) if own else ""
        return (
            case.name, case.unit, mine, brief(own), case.peer, there, brief(peer), ratio, goal, verdict,
            compared(own, peer),
        )  # fmt: skip

    def figures(self) -> Iterator[dict[str, Any]]:
        """Yield a mapping for each figure. A figure is the result of one system in one case."""
        for case in self._cases.values():
            peer = case.median(case.peer)
            for system in case.samples:
                sample = case.median(system)
                assert sample is not None, "a system is there because of its samples"
                yield self._figure(case, system, sample, peer if system == MINKA else None)
            if case.peer in self.absent:
                yield {"benchmark": self.benchmark, "case": case.name, "system": case.peer, "value": None,
                       "unit": case.unit, "absent": self.absent[case.peer]}  # fmt: skip

    def _figure(self, case: Case, system: str, sample: Sample, peer: Sample | None) -> dict[str, Any]:
        figure: dict[str, Any] = {
            "benchmark": self.benchmark, "case": case.name, "system": system, "value": sample.value,
            "unit": case.unit, "all": [one.value for one in case.samples[system]],
        }  # fmt: skip
        for name, seconds in (("p50_ms", sample.p50_s), ("p99_ms", sample.p99_s), ("max_ms", sample.max_s)):
            if seconds is not None:
                figure[name] = round(seconds * 1000, 4)
        if peer is not None and peer.value:
            figure |= {"peer": case.peer, "ratio": sample.value / peer.value}
        if system == MINKA and case.goal is not None:
            figure |= {"goal": str(case.goal), "met": case.goal.met(sample.value, peer.value if peer else None)}
        return (
            figure
            | sample.details
            | {"load": self._load, "processors": self._processors, "machine": machine(), "time": int(time.time())}
        )


def main(benchmark: str, description: str, run: Callable[[Report], None]) -> None:
    """Run one benchmark with the options of the command line."""
    options = parse(description, sys.argv[1:])
    measure(benchmark, options, run)


def measure(benchmark: str, options: Options, run: Callable[[Report], None]) -> None:
    """Run one benchmark, and show its figures; if it fails, show the figures so far."""
    report = Report(benchmark, options)
    say(f"{benchmark}: on {machine()}, data in {tempfile.gettempdir()}, load {load():.2f}")
    if load() > QUIET_LOAD:
        say(f"{benchmark}: the machine is busy, so figures will be lower than on a quiet machine")
    try:
        run(report)
    finally:
        report.finish()


def parse(description: str, arguments: Sequence[str]) -> Options:
    """Parse the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="run one short round, to see if the benchmark works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line of JSON for each figure to this file")
    parsed = parser.parse_args(arguments)
    return Options(parsed.quick, parsed.json)


def sample_of(operations: int, seconds: float, latencies_s: Sequence[float], **details: float) -> Sample:
    """Make a sample of operations per second, with the percentiles of the calls' latencies."""
    ordered = sorted(latencies_s)
    highest = ordered[-1] if ordered else None
    return Sample(operations / seconds, percentile(ordered, 50), percentile(ordered, 99), highest, details)


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """The smallest value for which at least `percent` % of the values are less or equal; None without values. `ordered`
    has the values in ascending order.
    """
    if not ordered:
        return None
    return ordered[max(0, -(-len(ordered) * percent // 100).__int__() - 1)]


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align the cells in columns with two blanks between them; numbers are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(w) if cell[:1].isdigit() else cell.ljust(w) for cell, w in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()


def shown(value: float) -> str:
    """Format a number with three significant digits, or more if the integer part has more: 1,234 or 56.7 or 0.123."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def brief(sample: Sample | None) -> str:
    """Format p50 and p99 in milliseconds; "" if there are none."""
    if sample is None or sample.p50_s is None or sample.p99_s is None:
        return ""
    return f"{shown(sample.p50_s * 1000)}/{shown(sample.p99_s * 1000)}"


def compared(own: Sample | None, peer: Sample | None) -> str:
    """Format the details of Minka's sample: "name minka's / the peer's", or "name minka's" if the peer lacks the
    detail.
    """
    if own is None:
        return ""
    theirs = peer.details if peer else {}
    return ", ".join(
        f"{name.replace('_', ' ')} {shown(value)}" + (f" / {shown(theirs[name])}" if name in theirs else "")
        for name, value in own.details.items()
    )


def latencies(sample: Sample) -> str:
    """Format p50 and p99 as the end of a sentence; "" if there are none."""
    return f", p50/p99 {brief(sample)} ms" if brief(sample) else ""


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)
