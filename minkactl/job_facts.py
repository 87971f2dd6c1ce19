"""The facts that are shown about a stage of a Spark job."""

from typing import TYPE_CHECKING

from minkactl import units

if TYPE_CHECKING:
    from minka.spark.progress import Progress


def facts(progress: "Progress") -> list[str]:
    """The known facts of a stage: tasks, rows, bytes and rate, and while it runs the time to go."""
    found = []
    if progress.tasks and not progress.is_over:
        found.append(f"{progress.tasks_done:,} of {units.counted(progress.tasks, 'task')}")
    if progress.rows is not None:
        found.append(units.counted(progress.rows, "row"))
    if progress.bytes is not None:
        found.append(units.size(progress.bytes))
    rows_per_s, bytes_per_s = rates(progress)
    if rows_per_s:
        found.append(f"{rows_per_s:,.0f} rows/s")
    if bytes_per_s:
        found.append(units.rate(bytes_per_s))
    if progress.eta_s is not None and progress.eta_s >= 1:
        found.append(f"about {units.duration(progress.eta_s)} left")
    if progress.blocker:
        found.append(f"waits: {progress.blocker}")
    return found


def rates(progress: "Progress") -> tuple[float | None, float | None]:
    """Rows and bytes a second: those of now, or the mean if the stage is over."""
    if not progress.is_over:
        return progress.rows_per_s, progress.bytes_per_s
    seconds = max(progress.seconds, 0.001)
    return (
        None if progress.rows is None else progress.rows / seconds,
        None if progress.bytes is None else progress.bytes / seconds,
    )
