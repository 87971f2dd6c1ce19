"""Runs trace files and reports the results."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.vectors.confchange_driver import ConfChangeDriver
from tests.vectors.datadriven import Case, FormatError, read_cases
from tests.vectors.interaction_driver import InteractionDriver
from tests.vectors.interaction_nodes import OutOfScope
from tests.vectors.quorum_driver import QuorumDriver

_LOG_LINE = re.compile(r"\s*(DEBUG|INFO|WARN|ERROR|FATAL) ")


class Driver(Protocol):
    """Runs the cases of one file."""

    def run(self, case: Case) -> str:
        """Run the command of a case; returns the command's output."""


DRIVERS: dict[str, Callable[[], Driver]] = {
    "quorum": QuorumDriver,
    "confchange": ConfChangeDriver,
    "interaction": InteractionDriver,
}


@dataclass(slots=True)
class Verdict:
    """The result of running a trace file."""

    path: Path
    cases: int = 0
    lines: int = 0  # compared lines
    log_lines: int = 0  # skipped lines
    ignored: Sequence[str] = ()  # arguments that no command knows
    failure: str = ""  # the first difference
    skipped: str = ""  # the reason why the rest of the file was not run

    def __str__(self) -> str:
        word = "FAIL" if self.failure else "skip" if self.skipped else "pass"
        text = f"{word}  {self.path.parent.name}/{self.path.name}: {self.cases} cases, {self.lines} lines compared"
        if self.log_lines:
            text += f", {self.log_lines} lines of log text left out (their wording is etcd's own)"
        if self.ignored:
            text += f"\n      unknown arguments ignored, as etcd does: {', '.join(self.ignored)}"
        if self.skipped:
            text += f"\n      skipped from {self.skipped}"
        return text + (f"\n{self.failure}" if self.failure else "")


def find_files(folder: Path) -> list[Path]:
    """Find the trace files in the subfolders quorum, confchange and interaction of the folder."""
    return [path for kind in DRIVERS for path in sorted((folder / kind).glob("*.txt"))]


def run_file(path: Path) -> Verdict:
    """Run a file, up to the first output that differs from the expected one."""
    verdict = Verdict(path)
    driver = DRIVERS[path.parent.name]()
    try:
        for case in read_cases(path):
            verdict.cases += 1
            _run_case(driver, case, verdict)
            if verdict.failure or verdict.skipped:
                break
    except FormatError as error:
        verdict.failure = f"      {error}"
    if isinstance(driver, InteractionDriver):
        verdict.ignored = sorted(driver.ignored)
    return verdict


def _run_case(driver: Driver, case: Case, verdict: Verdict) -> None:
    try:
        actual = driver.run(case).splitlines()
    except OutOfScope as error:
        verdict.skipped = f"line {case.line} on ({case.command}): {error}"
        return
    except Exception as error:  # noqa: BLE001 - an error of the core fails only this file
        verdict.failure = f"      {verdict.path}:{case.line}: {case.command} raised {type(error).__name__}: {error}"
        return
    expected = [
        (case.expected_line + offset, line) for offset, line in enumerate(case.expected) if not _LOG_LINE.match(line)
    ]
    verdict.log_lines += len(case.expected) - len(expected)
    verdict.lines += len(expected)
    actual = [line for line in actual if not _LOG_LINE.match(line)]
    # A trace has `ok` in place of an output without any line. Log lines are left out here, so an output of log lines
    # alone counts as `ok`, too.
    if [line for _, line in expected] in ([], ["ok"]) and actual in ([], ["ok"]):
        return
    verdict.failure = _difference(verdict.path, case, expected, actual)


def _difference(path: Path, case: Case, expected: list[tuple[int, str]], actual: list[str]) -> str:
    """Describe the first difference between the outputs, with the lines around it; "" if they are equal."""
    same = 0
    while same < min(len(expected), len(actual)) and expected[same][1] == actual[same]:
        same += 1
    if same == len(expected) == len(actual):
        return ""
    where = expected[same][0] if same < len(expected) else case.expected_line + len(case.expected)
    lines = [f"      {path}:{where}: {case.command} (line {case.line}) says something else"]
    lines += [f"          {line}" for line in actual[max(0, same - 3) : same]]
    lines += [f"        - {line}" for _, line in expected[same : same + 5]]
    lines += [f"        + {line}" for line in actual[same : same + 5]]
    return "\n".join([*lines, "        (- expected, + found)"])
