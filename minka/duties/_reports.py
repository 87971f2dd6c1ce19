"""A shard's reports about its duties. One report is under way at a time; it is repeated until the cluster has recorded
it. This module does no I/O.
"""

from collections.abc import Iterator

from minka.v1.shards_pb2 import DelegateTime, FailedDuty, Holding, ShardReport, WeighedDuty


class Reports:
    """Collects the next report, and remembers which assignments are over, since a late message may assign one of them
    again. The shard must not take such an assignment.
    """

    def __init__(self) -> None:
        self._sequence = 0
        self._next = ShardReport()
        self._weights: dict[int, WeighedDuty] = {}
        self._under_way: ShardReport | None = None
        self._attached_at: dict[int, float] = {}  # by duty: when it was attached; kept until a report tells it
        self._spent: dict[int, int] = {}  # by duty: the epoch that was given back; kept until that is recorded

    @property
    def is_empty(self) -> bool:
        """True if the cluster has recorded everything that was to be reported."""
        return self._under_way is None and not self._has_next()

    def is_spent(self, duty: int, epoch: int) -> bool:
        """True if this assignment was given back, and the cluster hasn't recorded that yet."""
        return self._spent.get(duty, 0) >= epoch

    def attached(self, duty: int, epoch: int, took: float, now: float) -> None:
        """Report that the delegate has the duty. `took` is the seconds of the call of attach, which has just ended."""
        self._next.attached.append(Holding(duty=duty, epoch=epoch))
        self._took(duty, took)
        self._attached_at[duty] = now

    def prepared(self, duty: int, epoch: int) -> None:
        """Report that the delegate is ready for the duty."""
        self._next.prepared.append(Holding(duty=duty, epoch=epoch))

    def released(self, duty: int, epoch: int, took: float | None) -> None:
        """Report that the delegate no longer has the duty, or never had it. `took` is the seconds of the call that
        released it, if there was one.
        """
        if self.is_spent(duty, epoch):
            return
        self._spend(duty, epoch)
        self._next.released.append(Holding(duty=duty, epoch=epoch))
        if took is not None:
            self._took(duty, took)

    def finished(self, duty: int, epoch: int) -> None:
        """Report that the lazy duty has ended."""
        self._spend(duty, epoch)
        self._next.finished.append(Holding(duty=duty, epoch=epoch))

    def failed(self, duty: int, epoch: int, reason: str) -> None:
        """Report that the delegate can't take the duty, and why."""
        self._spend(duty, epoch)
        self._next.failed.append(FailedDuty(holding=Holding(duty=duty, epoch=epoch), reason=reason[:1000]))

    def weighed(self, duty: int, epoch: int, weight: int) -> None:
        """Report the weight that the delegate has measured."""
        self._weights[duty] = WeighedDuty(holding=Holding(duty=duty, epoch=epoch), weight=weight)

    def next(self, now: float) -> ShardReport | None:
        """The next report to send at `now` (seconds); None if there is none, or the last report isn't recorded yet."""
        if self._under_way is not None or not self._has_next():
            return None
        self._sequence += 1
        report, self._next = self._next, ShardReport()
        report.sequence = self._sequence
        report.weights.extend(self._weights.values())
        self._weights = {}
        for time in report.times:
            time.waited_ms = _milliseconds(now - self._attached_at.pop(time.duty, now))
        self._under_way = report
        return report

    def again(self) -> ShardReport | None:
        """The report to repeat on a new session: the cluster hasn't recorded it yet. None if there is none."""
        return self._under_way

    def recorded(self, sequence: int) -> None:
        """Note that the cluster has recorded the report with this sequence."""
        report = self._under_way
        if report is None or report.sequence != sequence:
            return
        self._under_way = None
        for holding in _given_back(report):
            if self._spent.get(holding.duty) == holding.epoch:
                del self._spent[holding.duty]

    def _spend(self, duty: int, epoch: int) -> None:
        self._spent[duty] = max(epoch, self._spent.get(duty, 0))

    def _took(self, duty: int, seconds: float) -> None:
        self._next.times.append(DelegateTime(duty=duty, took_ms=_milliseconds(seconds)))

    def _has_next(self) -> bool:
        some = self._next
        return bool(some.attached or some.released or some.finished or some.failed or some.prepared or self._weights)


def _milliseconds(seconds: float) -> int:
    return min(int(seconds * 1000), 2**32 - 1)


def _given_back(report: ShardReport) -> Iterator[Holding]:
    yield from report.released
    yield from report.finished
    for failed in report.failed:
        yield failed.holding
