"""python -m tests.simulation.scale: measure a controller's processor time, by the number of partitions."""

import argparse
import cProfile
import json
import pstats
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.simulation.scale.report import table
from tests.simulation.scale.scenario import EVENTS, Measurement, Scenario
from tests.simulation.scale.world import ScaleWorld, Size

_PROFILED: Final = 25  # functions to show


def main() -> int:
    """Run the scenario for each number of partitions; returns the exit status, 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.scale", description=__doc__)
    parser.add_argument("--partitions", type=_numbers, default=[1000, 10_000, 100_000], metavar="N,…")
    parser.add_argument("--nodes", type=int, default=1000, metavar="N")
    parser.add_argument("--learners", action="store_true", help="every node has the log, not only the voters")
    parser.add_argument("--events", type=int, default=EVENTS, metavar="N", help="only the first N events")
    parser.add_argument(
        "--walks", action="store_true", help="count the rows visited, and name the callers that go over all rows"
    )
    parser.add_argument("--profile", action="store_true", help="show the functions that took most of each event's time")
    parser.add_argument("--uncharged", action="store_true", help="let the controller's work take no simulated time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for each event")
    arguments = parser.parse_args()
    found: dict[int, list[Measurement]] = {}
    for partitions in arguments.partitions:
        size = Size(arguments.nodes, partitions, learners=arguments.learners, charged=not arguments.uncharged)
        found[partitions] = list(_run(size, arguments))
    _say(table(found))
    return 0


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - for the person who runs this program


def _run(size: Size, arguments: argparse.Namespace) -> Iterable[Measurement]:
    began = time.monotonic()
    world = ScaleWorld(size)
    with world.running():
        scenario = Scenario(world, watched=arguments.walks, profiled=arguments.profile)
        for number, measured in enumerate(scenario.run(), 1):
            _tell(measured, time.monotonic() - began)
            if measured.profile is not None:
                _show(measured.profile)
            if arguments.json is not None:
                with arguments.json.open("a") as file:
                    file.write(json.dumps(_line(size, measured)) + "\n")
            yield measured
            if number == arguments.events:
                return


def _tell(measured: Measurement, wall_s: float) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    _say(
        f"{measured.event}: {measured.cpu_s:.2f} s of processor time in {measured.watched_s:.1f} s, {measured.turns} "
        f"turns, the longest {measured.longest_s * 1e3:.1f} ms: {measured.culprit}; {measured.rows} rows in "
        f"{measured.records} records{'' if measured.ended else '; given up'} ({wall_s:.0f} s, {memory} MiB)"
    )
    for name, seconds in measured.most:
        _say(f"  {seconds * 1e3:10.1f} ms  {name}")
    if measured.visited:
        _say(f"  {measured.visited} rows visited")
    for walk in measured.walks:
        _say(f"  {walk.seconds * 1e3:10.1f} ms  {walk.times} walks of the table by {walk.caller}")


def _show(profile: cProfile.Profile) -> None:
    pstats.Stats(profile, stream=sys.stdout).strip_dirs().sort_stats("tottime").print_stats(_PROFILED)


def _line(size: Size, measured: Measurement) -> dict[str, object]:
    fields = {**asdict(size), **{name: getattr(measured, name) for name in Measurement.SHOWN}}
    return {"benchmark": "simulated controller", **fields}


if __name__ == "__main__":
    sys.exit(main())
