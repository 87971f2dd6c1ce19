"""The setup of all tests: the `seeds` marker and its options, the number of processes, the settings of Hypothesis."""

import gc
import os
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

# Hypothesis tries the same examples in each run. No example has a deadline, since durations vary on a busy machine.
settings.register_profile("minka", derandomize=True, database=None, deadline=None, print_blob=True)
settings.load_profile("minka")

_MOST_DOUBLED = 8  # up to this number, there are two test processes for each processor
_PROCESS_BYTES = 2 << 30  # the memory of a test process with its Spark and its daemons


def pytest_configure(config: pytest.Config) -> None:
    """Choose the seeds."""
    # If a shell has started pytest in the background, pytest ignores Ctrl-C. Without this line, the commands that
    # tests start would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.first_seed is None:
        config.option.first_seed = _seed_of_commit()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return the number of test processes for `-n auto`: two for each processor of a small machine, since tests with
    daemons wait for a third of their time. Returns None if the user has chosen another number.
    """
    if config.option.numprocesses != "auto" or "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    processors = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(max(processors, min(2 * processors, _MOST_DOUBLED)), memory // _PROCESS_BYTES))


def _seed_of_commit() -> int:
    """Return a number that follows from the commit, so that each commit tries other seeds, and all runs of a commit try
    the same seeds. Returns 0 outside of a repository, and without git.
    """
    try:
        shown = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, check=False
        )
    except OSError:
        return 0
    return int(shown.stdout[:7] or b"0", 16)


def pytest_report_header(config: pytest.Config) -> str:
    """Return the line of the header that names the first seed."""
    return f"seeds: from {config.option.first_seed} on"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, those of tests/pipeline and tests/simulation: at the end other processes would wait
    for them.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/pipeline/", "tests/simulation/")))


def pytest_collection_finish() -> None:
    """Exclude all imported modules from garbage collections. In a process that runs the whole suite, a collection that
    includes them takes a quarter of a second.
    """
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --seeds and --first-seed."""
    parser.addoption("--seeds", type=int, metavar="N", help="run each test marked `seeds` with N seeds")
    parser.addoption(
        "--first-seed", type=int, metavar="S", help="the first of the seeds (default: another for each commit)"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the mark `seeds(n)` n times, with different values of its argument `seed`."""
    marker = metafunc.definition.get_closest_marker("seeds")
    if marker is None:
        return
    (default,) = marker.args
    chosen: int | None = metafunc.config.getoption("--seeds")
    count = default if chosen is None else chosen
    first: int = metafunc.config.option.first_seed
    seeds = range(first, first + count)
    metafunc.parametrize("seed", seeds, ids=[f"seed{n}" for n in seeds])
