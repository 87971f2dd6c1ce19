"""The duties that a shard should have, the duties that it has, and the calls to its delegate that are under way. This
module does no I/O.

A duty is first ATTACHING (or PREPARING), is ATTACHED once the delegate's attach has returned, and DETACHING from its
release until the delegate's detach has returned. From the call of attach until the call of detach has returned, the
delegate may act for the duty, and the duty's record is `live`.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from minka.duties._events import MAX_CALL_DUTIES, CallDelegate, CancelCall, Instruction, MachineSettings, Method, Note
from minka.duties._reports import Reports
from minka.v1.shards_pb2 import HeldDuty, Holding

WARNING: Final = 30  # logging's value; this module doesn't import logging, which does I/O
ERROR: Final = 40


class Phase(Enum):
    """The phase of a duty on its shard."""

    PREPARING = "preparing"
    ATTACHING = "attaching"
    ATTACHED = "attached"
    DETACHING = "detaching"


class Ending(Enum):
    """The outcome that is recorded for a duty once it is detached."""

    RELEASED = "released"
    FAILED = "failed"
    REATTACHED = "reattached"  # the shard attaches the duty again, with its new payload


@dataclass(slots=True, eq=False)
class Record:
    """A duty that the shard has, is about to take, or is releasing."""

    duty: HeldDuty  # as the node last sent it
    phase: Phase
    live: bool = False  # the delegate may act for the duty
    busy: bool = False  # the duty is in a call that is under way
    alone: bool = False  # after a failure: the next call has only this duty
    apart: bool = False  # its calls take too long, so other duties don't wait for them
    given: int = 0  # the version of the duty that the delegate has
    tries: int = 0  # the number of failed calls of the method that is due
    ending: Ending | None = None
    reason: str = ""  # why its ending is FAILED
    next: HeldDuty | None = None  # a later assignment, which begins when this one has ended
    # The cluster has ended all assignments up to this epoch. If this epoch is later than the epoch of `duty`, the shard
    # reports the releases of both epochs.
    released_epoch: int = 0
    detach_began: float = 0.0
    attach_ended: float = 0.0
    weight_told: int | None = None
    weight_told_at: float = float("-inf")


@dataclass(slots=True, eq=False)
class Lane:
    """The calls to the delegate for one pallet: the call that runs, and the duties that wait for the next calls. If a
    call has taken too long, the lane no longer counts it as running, so the next call runs at the same time.
    """

    pallet: str
    running: CallDelegate | None = None
    queues: dict[Method, dict[int, None]] = field(default_factory=lambda: {method: {} for method in Method})


class Hosting:
    """The duties of one shard. The caller carries out the instructions in `out`, in their order."""

    def __init__(
        self, pallets: Iterable[str], methods: Iterable[Method], settings: MachineSettings, reports: Reports
    ) -> None:
        self.records: dict[int, Record] = {}
        self.live = 0  # the number of records for which the delegate may act
        self.may_take = False  # True if the clearance lasts long enough to take something new
        self.in_hurry = False  # True while little clearance is left: work that doesn't release duties waits
        self.out: list[Instruction] = []
        self._lanes = {"": Lane("")}
        self.take(pallets)
        self._methods = frozenset(methods)
        self._settings = settings
        self._reports = reports
        self._calls: dict[int, tuple[CallDelegate, float]] = {}  # calls under way, each with the time when it began
        self._interrupted: set[int] = set()  # cancelled calls of prepare: one of their duties has to be attached
        self._last_call = 0
        self._retries: list[tuple[float, int, Method]] = []  # a heap of (time, number of the duty, method)
        # Duties that were released in a hurry, each with the seconds that this took. The releases aren't reported yet.
        self._over: list[tuple[Record, float]] = []
        self._report_due = float("-inf")

    # The shard's duties as they are now

    def holdings(self) -> Iterator[Holding]:
        """The assignments that the shard has, is about to take, or is releasing."""
        for record in self.records.values():
            yield Holding(duty=record.duty.duty, epoch=record.duty.epoch, version=record.duty.version)

    def holds(self, number: int, epoch: int) -> bool:
        """True if the delegate has this assignment. Any thread may call this."""
        record = self.records.get(number)
        return record is not None and record.live and record.duty.epoch == epoch

    def wake_at(self) -> float:
        """The time at which `advance` will have something to do, even if no event comes before."""
        if self._over and not self.in_hurry:
            return float("-inf")
        retry = self._retries[0][0] if self._retries else float("inf")
        return min(retry, self._report_due if self._reports_itself() else float("inf"))

    def is_report(self, call: int) -> bool:
        """True if the call asks the delegate which duties it has."""
        return self._calls[call][0].method is Method.REPORT

    def forget_reports(self) -> Reports:
        """Drop the reports that aren't recorded yet: the cluster took the former incarnation for dead, and would refuse
        its reports. Returns the reports of the new incarnation, which are empty.
        """
        assert not self.records, "the former process still has duties"
        self._reports = Reports()
        return self._reports

    # Instructions of the cluster

    def take(self, pallets: Iterable[str]) -> None:
        """Accept the duties of these pallets, in addition to those accepted before."""
        for pallet in pallets:
            self._lanes.setdefault(pallet, Lane(pallet))

    def attach(self, duty: HeldDuty) -> None:
        """Attach the duty: the cluster has given it to the shard."""
        number, record = duty.duty, self.records.get(duty.duty)
        if self._reports.is_spent(number, duty.epoch):
            return
        if duty.pallet not in self._lanes or not duty.pallet:
            self._reports.failed(number, duty.epoch, f"the shard doesn't take the pallet {duty.pallet}")
        elif record is None:
            self._begin(duty, Phase.ATTACHING)
        elif record.duty.epoch == duty.epoch and record.phase is not Phase.PREPARING:
            self.update(duty)
        elif record.duty.epoch <= duty.epoch:
            record.next = duty
            self._release(record, Ending.RELEASED)
            if record.busy and record.phase is Phase.PREPARING:
                self._interrupt(number)

    def prepare(self, duty: HeldDuty) -> None:
        """Prepare for the duty, which the cluster will give to this shard next."""
        number, record = duty.duty, self.records.get(duty.duty)
        if self._reports.is_spent(number, duty.epoch) or duty.pallet not in self._lanes:
            return
        if record is not None:
            # If the shard has the duty by an earlier assignment, there is nothing to load.
            if record.duty.epoch < duty.epoch:
                self._reports.prepared(number, duty.epoch)
        elif Method.PREPARE in self._methods:
            self._begin(duty, Phase.PREPARING)
        else:
            self.records[number] = Record(duty, Phase.PREPARING)
            self._reports.prepared(number, duty.epoch)

    def update(self, duty: HeldDuty) -> None:
        """Tell the delegate that a client has changed the duty."""
        record = self.records.get(duty.duty)
        if record is None or record.duty.epoch != duty.epoch or record.duty.version >= duty.version:
            return
        record.duty = duty
        if record.phase is Phase.ATTACHED and not record.busy:
            self._hand_update(record)

    def detach(self, holding: Holding) -> None:
        """End this assignment of the duty and all earlier ones. The release is reported even if the shard doesn't have
        the duty.
        """
        record = self.records.get(holding.duty)
        if record is None:
            self._reports.released(holding.duty, holding.epoch, None)
        elif record.duty.epoch <= holding.epoch:
            if record.next is not None and record.next.epoch <= holding.epoch:
                record.next = None
            record.released_epoch = max(record.released_epoch, holding.epoch)
            self._release(record, Ending.RELEASED)

    def _interrupt(self, number: int) -> None:
        """Cancel the call that prepares for the duty: the duty is assigned now, and must not wait for that call."""
        calls = (call for call, _ in self._calls.values() if any(duty.duty == number for duty in call.duties))
        call = next(calls)
        assert call.method is Method.PREPARE, "another call for the duty"
        if call.call not in self._interrupted:
            self._interrupted.add(call.call)
            self.out.append(CancelCall(call.call, "one of the duties has to be attached"))

    def release_all(self, *, unbegun: bool) -> None:
        """Release all duties that the delegate has. If `unbegun` is true, also release the duties that the delegate
        hasn't got yet.
        """
        for record in list(self.records.values()):
            if record.live or unbegun:
                record.next = None
                self._release(record, Ending.RELEASED)
        for call, _ in self._calls.values():
            if call.method not in (Method.DETACH, Method.REPORT):
                self.out.append(CancelCall(call.call, "the duties have to be released"))

    # The steps of a duty, from its assignment to its release

    def _begin(self, duty: HeldDuty, phase: Phase) -> None:
        self.records[duty.duty] = Record(duty, phase)
        self._queue(duty, Method.ATTACH if phase is Phase.ATTACHING else Method.PREPARE)

    def _queue(self, duty: HeldDuty, method: Method) -> None:
        self._lanes[duty.pallet].queues[method][duty.duty] = None

    def _release(self, record: Record, ending: Ending) -> None:
        if record.ending is not Ending.FAILED:
            record.ending = ending
        if record.busy or record.phase is Phase.DETACHING:
            return  # the release goes on when the call has ended
        if not record.live:
            self._end(record, None)
            return
        record.phase, record.tries, record.alone, record.apart = Phase.DETACHING, 0, False, False
        self._lanes[record.duty.pallet].queues[Method.UPDATE].pop(record.duty.duty, None)
        self._queue(record.duty, Method.DETACH)

    def _hand_update(self, record: Record) -> None:
        if Method.UPDATE in self._methods:
            self._queue(record.duty, Method.UPDATE)
        else:
            self._release(record, Ending.REATTACHED)

    def _end(self, record: Record, took: float | None) -> None:
        """Remove the record of a duty that the delegate no longer has, or never had, and report the outcome. `took` is
        how many seconds the release took, if there was one.
        """
        duty, number = record.duty, record.duty.duty
        self._set_live(record, False)
        for method in (Method.ATTACH, Method.PREPARE, Method.UPDATE):
            self._lanes[duty.pallet].queues[method].pop(number, None)
        del self.records[number]
        if record.ending is Ending.REATTACHED:
            self._begin(duty, Phase.ATTACHING)
            return
        if record.ending is Ending.FAILED:
            self._reports.failed(number, duty.epoch, record.reason)
        elif record.phase is not Phase.PREPARING or record.next is None:
            self._reports.released(number, duty.epoch, took)
        if record.released_epoch > duty.epoch:
            self._reports.released(number, record.released_epoch, None)
        if record.next is not None:
            self.attach(record.next)

    def _set_live(self, record: Record, live: bool) -> None:
        self.live += live - record.live
        record.live = live

    # Calls

    def advance(self, now: float) -> None:
        """Begin the calls that can begin at `now` (seconds)."""
        if not self.in_hurry:
            some, self._over = self._over[:MAX_CALL_DUTIES], self._over[MAX_CALL_DUTIES:]
            for released, took in some:
                self._end(released, took)
        while self._retries and self._retries[0][0] <= now:
            _, number, method = heapq.heappop(self._retries)
            record = self.records.get(number)
            if record is None or not record.tries or record.busy or method is not _method_of(record):
                continue
            if record.apart and (method is Method.DETACH or self.may_take):
                self._begin_call(self._lanes[record.duty.pallet], method, [record], now)
            else:
                self._queue(record.duty, method)
        for lane in self._lanes.values():
            if lane.running is None and lane.pallet:
                self._next_call(lane, now)
        if not self._reports_itself():
            self._report_due = now + self._settings.report_interval
        elif now >= self._report_due:
            self._report_due = now + self._settings.report_interval
            if self._lanes[""].running is None:
                self._lanes[""].running = self._call(self._lanes[""], Method.REPORT, (), now)

    def _reports_itself(self) -> bool:
        return Method.REPORT in self._methods and self.live > 0

    def _next_call(self, lane: Lane, now: float) -> None:
        for method, queue in lane.queues.items():
            if not queue or (method is not Method.DETACH and not self.may_take):
                continue
            first = self.records[next(iter(queue))]
            some = [first]
            if not first.alone:
                rest = (self.records[number] for number in queue)
                some = [one for one, _ in zip((r for r in rest if not r.alone), range(MAX_CALL_DUTIES), strict=False)]
            for record in some:
                del queue[record.duty.duty]
            lane.running = self._begin_call(lane, method, some, now)
            return

    def _begin_call(self, lane: Lane, method: Method, some: Sequence[Record], now: float) -> CallDelegate:
        for record in some:
            record.busy = True
            if method is Method.ATTACH:
                self._set_live(record, True)
            elif method is Method.DETACH and not record.tries:
                record.detach_began = now
        return self._call(lane, method, tuple(record.duty for record in some), now)

    def _call(self, lane: Lane, method: Method, duties: tuple[HeldDuty, ...], now: float) -> CallDelegate:
        self._last_call += 1
        call = CallDelegate(self._last_call, method, lane.pallet, duties, self._settings.call_timeout)
        self._calls[call.call] = (call, now)
        self.out.append(call)
        return call

    def overdue(self, number: int) -> None:
        """Log that the call can't be ended. Its duties wait until it returns; other duties of the pallet don't wait."""
        call, _ = self._calls[number]
        rest = "the shard asks for no other report until it returns"
        if call.method is not Method.REPORT:
            self._leave_lane(call)
            rest = "the pallet's other duties don't wait for it"
        text = f"{call.method.value} of {_named(call)} has taken {call.timeout:g} s and can't be ended: {rest}"
        self.out.append(Note(ERROR, text))

    def _leave_lane(self, call: CallDelegate) -> None:
        lane = self._lanes[call.pallet]
        if lane.running is call:
            lane.running = None

    def ended(self, number: int, error: str | None, now: float) -> None:
        """Take the result of a call that has returned or raised, and begin the next step of each of its duties."""
        call, began = self._calls.pop(number)
        self._leave_lane(call)
        interrupted = error is not None and number in self._interrupted
        self._interrupted.discard(number)
        if error is not None:
            self.out.append(Note(WARNING, f"{call.method.value} of {_named(call)} failed: {error}"))
        outcome: Callable[[Record, HeldDuty, float, float], None] = {
            Method.ATTACH: self._attached,
            Method.DETACH: self._detached,
            Method.UPDATE: self._updated,
            Method.PREPARE: self._prepared,
        }[call.method]
        for duty in call.duties:
            record = self.records[duty.duty]
            record.busy = False
            if error is None:
                record.tries, record.alone, record.apart = 0, False, False
                outcome(record, duty, began, now)
            elif interrupted and record.ending is None:
                self._queue(record.duty, call.method)  # the call was cancelled, so the duty has not failed
            else:
                record.apart = len(call.duties) == 1 and now - began >= call.timeout
                self._failed(record, call, error, now)

    def _attached(self, record: Record, duty: HeldDuty, began: float, now: float) -> None:
        record.phase, record.given, record.attach_ended = Phase.ATTACHED, duty.version, now
        if record.ending is not None:
            self._release(record, record.ending)
            return
        self._reports.attached(duty.duty, duty.epoch, now - began, now)
        if record.duty.version > record.given:
            self._hand_update(record)

    def _updated(self, record: Record, duty: HeldDuty, began: float, now: float) -> None:
        record.given = duty.version
        if record.ending is not None:
            self._release(record, record.ending)
        elif record.duty.version > record.given:
            self._hand_update(record)

    def _prepared(self, record: Record, duty: HeldDuty, began: float, now: float) -> None:
        if record.ending is not None:
            self._end(record, None)
        else:
            self._reports.prepared(duty.duty, duty.epoch)

    def _detached(self, record: Record, duty: HeldDuty, began: float, now: float) -> None:
        if self.in_hurry:
            self._set_live(record, False)
            self._over.append((record, now - record.detach_began))
        else:
            self._end(record, now - record.detach_began)

    def _failed(self, record: Record, call: CallDelegate, error: str, now: float) -> None:
        method = call.method
        if method is Method.ATTACH:
            self._set_live(record, False)  # if attach raises, the delegate has none of the call's duties
        if method is not Method.DETACH and record.ending is not None:
            self._release(record, record.ending)
            return
        if len(call.duties) > 1:
            record.alone = True
            self._queue(record.duty, method)
            return
        record.tries += 1
        settings = self._settings
        if method is not Method.DETACH and record.tries >= settings.tries:
            record.reason = f"{method.value}: {error}"
            self._release(record, Ending.FAILED)
            return
        delay = min(settings.retry_most, settings.retry_first * 2.0 ** min(record.tries - 1, 20))
        heapq.heappush(self._retries, (now + delay, record.duty.duty, method))

    # The delegate's reports

    def reported(self, number: int, error: str | None, held: Mapping[tuple[int, int], int | None], now: float) -> None:
        """Take the delegate's report: `held` has the weight of each duty, by number and epoch; None means no weight."""
        _, began = self._calls.pop(number)
        self._lanes[""].running = None
        if error is not None:
            self.out.append(Note(WARNING, f"the delegate's report failed: {error}"))
            return
        for record in list(self.records.values()):
            if record.phase is not Phase.ATTACHED or record.busy or record.attach_ended > began:
                continue  # the duty changed during the report, so the report may or may not have it
            key = record.duty.duty, record.duty.epoch
            if key in held:
                self._weigh(record, held[key], now)
            elif record.duty.lazy:
                self._finish(record)

    def _finish(self, record: Record) -> None:
        duty = record.duty
        self._lanes[duty.pallet].queues[Method.UPDATE].pop(duty.duty, None)
        self._set_live(record, False)
        del self.records[duty.duty]
        self._reports.finished(duty.duty, duty.epoch)

    def _weigh(self, record: Record, weight: int | None, now: float) -> None:
        settings = self._settings
        if weight is None or now - record.weight_told_at < settings.weight_interval:
            return
        known = record.duty.weight if record.weight_told is None else record.weight_told
        if abs(weight - known) >= settings.weight_change * known and weight != known:
            record.weight_told, record.weight_told_at = weight, now
            self._reports.weighed(record.duty.duty, record.duty.epoch, weight)


def _method_of(record: Record) -> Method:
    """The delegate's method that is due in the phase of the record."""
    return {
        Phase.PREPARING: Method.PREPARE,
        Phase.ATTACHING: Method.ATTACH,
        Phase.ATTACHED: Method.UPDATE,
        Phase.DETACHING: Method.DETACH,
    }[record.phase]


def _named(call: CallDelegate) -> str:
    if not call.duties:
        return "all duties"
    first = f"{call.pallet}/{call.duties[0].id}"
    return first if len(call.duties) == 1 else f"{len(call.duties)} duties (the first is {first})"
