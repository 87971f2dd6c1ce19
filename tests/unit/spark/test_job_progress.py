"""The progress of a running job, as minkactl prints it."""

import pytest

from minka.spark.progress import Progress
from minkactl import job_progress
from minkactl.job_facts import facts
from minkactl.job_progress import Lines, shown
from minkactl.render.jobs import drawn


def progress(number: int, **known: float) -> Progress:
    stage = ("read", "upload")[number - 1]
    return Progress(job="load", job_seconds=9.0, stage=stage, number=number, stages=2, seconds=8.0, **known)  # type: ignore[arg-type]


RUNS = progress(1, tasks_done=3, tasks=4, rows=1000, rows_per_s=125.4, bytes=1 << 20, bytes_total=2 << 20)
OVER = progress(1, is_over=True, tasks_done=4, tasks=4, rows=2000, bytes=2 << 20)


def test_the_facts_about_a_stage() -> None:
    assert facts(progress(1)) == []
    assert facts(RUNS) == ["3 of 4 tasks", "1,000 rows", "1 MiB", "125 rows/s", "about 8.0 s left"]
    assert facts(OVER) == ["2,000 rows", "2 MiB", "250 rows/s", "256 KiB/s"]


def test_a_pipe_gets_a_line_at_the_end_of_each_stage_and_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines()
    for one in (RUNS, RUNS, OVER, progress(2)):
        lines(one)
    ended = "1/2 read: done in 8.0 s, 2,000 rows, 2 MiB, 250 rows/s, 256 KiB/s\n"
    assert capsys.readouterr() == ("", ended)
    monkeypatch.setattr(job_progress, "LINES_EVERY_S", 0.0)
    Lines()(RUNS)
    assert capsys.readouterr().err == "1/2 read: runs, 3 of 4 tasks, 1,000 rows, 1 MiB, 125 rows/s, about 8.0 s left\n"


def test_a_terminal_shows_one_line_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with drawn() as view:
        for one in (RUNS, OVER, progress(2, tasks_done=0, tasks=2), progress(2)):
            view(one)
    out, err = capsys.readouterr()
    assert out == ""
    first, second = [line for line in err.splitlines() if line.strip()]
    assert first.startswith("1/2 read")
    assert "100 %" in first
    assert second.rstrip().startswith("2/2 upload")
    assert "%" not in second, "its progress is unknown"


def test_quiet_shows_no_progress() -> None:
    with shown(quiet=True) as told:
        assert told is None
