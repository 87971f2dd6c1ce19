"""The behaviour of a shard: events come in, instructions go out, and the time is an argument (in the manner of
dask.distributed's worker state machine). It is pure: the shell around it (`minka.duties._session`) and the simulator
run the same code.

The delegate gets nothing without clearance, never two assignments of one duty at once, and never an assignment that was
given back. The machine releases all duties when the clearance gets short, and repeats the report of each release until
the cluster has recorded it.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from minka.duties._events import (
    CallEnded,
    CallOverdue,
    Connected,
    Disconnect,
    Disconnected,
    EndProcess,
    Event,
    GiveUp,
    Instruction,
    Leave,
    LoopClosed,
    MachineSettings,
    Method,
    Note,
    Received,
    Resized,
    Send,
    Stopped,
    Tick,
)
from minka.duties._hosting import ERROR, WARNING, Hosting
from minka.duties._reports import Reports
from minka.v1.duties_pb2 import Shard
from minka.v1.shards_pb2 import ShardGrant, ShardHeartbeat, ShardHello, ShardInstruction, ShardLeave, ShardMessage

MARGIN: Final = 1 / 3  # the release of all duties begins when this part of the clearance is left
MOST_MARGIN: Final = 1 / 2  # with many duties the release begins earlier, but not before this part is left
RELEASE_S: Final = 50e-6  # the most seconds for the release of one duty, without the delegate's work; measured: 14e-6
_FENCED: Final = "SHARD_FENCED"
_MALFORMED: Final = "INVALID_ARGUMENT"
_HOPELESS: Final = (_MALFORMED, "CLUSTER_MISMATCH")  # the cluster would refuse another try, too
_SENT_KEPT: Final = 64
_NAMED: Final = 3  # the most unknown pallets that a message names
_NOTED_AGAIN_S: Final = 10.0  # before a problem is noted again, if it takes turns with others
_FAREWELL_S: Final = 1.0  # the time for the last report when the process stops without waiting for the cluster


class ShardMachine:
    """One shard. `new_incarnation` makes an identity for the process: one at the start, and another after the cluster
    considered the process dead. With `ends_process` the machine ends the process if the clearance ends before the
    delegate has released everything.
    """

    def __init__(
        self,
        shard: Shard,
        methods: Iterable[Method],
        settings: MachineSettings,
        *,
        new_incarnation: Callable[[], str],
        ends_process: bool = True,
    ) -> None:
        self.shard = shard
        self.reports = Reports()
        self.hosting = Hosting([one.pallet for one in shard.pallets], methods, settings, self.reports)
        self.until = float("-inf")  # the end of the clearance
        self.is_registered = False  # True if a node has registered this incarnation
        self._settings = settings
        self._new_incarnation = new_incarnation
        self.ends_process = ends_process
        self._known_index = 0
        self._interval = 0.5  # seconds between heartbeats; the node's welcome states them
        self._clearance = 0.0  # the longest clearance that a node has granted, in seconds
        self._connected = False
        self._heard_at = 0.0
        self._sequence = 0
        self._sent: dict[int, float] = {}  # by sequence number: when an unanswered heartbeat was sent
        self._beat_at = float("inf")
        self._releasing = False
        self._patience = float("-inf")  # the delegate may release duties until then, even after the clearance has ended
        self._fenced = False
        self._leaving = False
        self._giving_up = False
        self._loop_closed = False
        self._error: tuple[str, str] | None = None  # why the shard ends, if the user didn't ask it to
        self._farewell = float("inf")
        self._ended = False
        self._problem = ""  # the code of the problem that was noted last
        self._noted_at: dict[str, float] = {}  # by code, since the cluster welcomed the shard
        self._unknown: tuple[str, ...] = ()  # pallets that the shard takes, but nobody has created
        self._out: list[Instruction] = []

    # Called by the shell, and by `Duty.is_held` on any thread

    @property
    def may_connect(self) -> bool:
        """True if a session may begin. If the cluster considered the process dead, the delegate must first release
        everything.
        """
        return not self._fenced

    def holds(self, number: int, epoch: int, now: float) -> bool:
        """True if the delegate may act now for this assignment."""
        return now < self.until and self.hosting.holds(number, epoch)

    def wake_at(self) -> float:
        """The time at which to send a Tick, if no other event comes before."""
        times = [self._beat_at, self.hosting.wake_at()]
        if not self.hosting.records:
            times.append(self._farewell)
        if self._connected:
            times.append(self._silent_at())
        if self.hosting.live:
            times.append(max(self.until, self._patience) if self._releasing else self._release_at())
        return min(times)

    # Events

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """The instructions that follow from the event, in order. After Stopped or EndProcess nothing more follows."""
        if self._ended:
            return []
        self._watch_clearance(now)
        handlers: dict[type[Any], Callable[[Any, float], None]] = {
            Connected: self._on_connected,
            Disconnected: self._on_disconnected,
            Received: self._on_received,
            CallEnded: self._on_call_ended,
            CallOverdue: lambda event, _: self.hosting.overdue(event.call),
            Leave: self._on_leave,
            GiveUp: self._on_give_up,
            LoopClosed: self._on_loop_closed,
            Resized: self._on_resized,
            Tick: lambda *_: None,
        }
        handlers[type(event)](event, now)
        self._advance(now)
        out, self._out = self._out, []
        return out

    def _advance(self, now: float) -> None:
        if self._ended:
            return
        if self._connected and now >= self._silent_at():
            self._disconnect(now, "the node granted no clearance in time")
        if now >= self._beat_at:
            self._beat(now)
        self._watch_clearance(now)
        self.hosting.may_take = self._may_take(now)
        self.hosting.in_hurry = self._releasing and self.hosting.live > 0
        self.hosting.advance(now)
        self._out += self.hosting.out
        self.hosting.out.clear()
        if self._connected and self.is_registered and (report := self.reports.next(now)) is not None:
            self._send(ShardMessage(report=report))
        self._renew()
        self._end_if_done(now)

    def _may_take(self, now: float) -> bool:
        allowed = not self._fenced and not self._giving_up and not self._releasing
        return allowed and now < self._release_at()

    def _margin(self) -> float:
        return self._clearance * MARGIN

    def _release_at(self) -> float:
        """The time at which to begin the release of all duties, so that it is complete before the clearance ends."""
        takes = min(RELEASE_S * self.hosting.live, self._clearance * MOST_MARGIN)
        return self.until - max(self._margin(), takes)

    def _note(self, level: int, text: str) -> None:
        self._out.append(Note(level, text))

    # The session

    def _silent_at(self) -> float:
        """The time at which to try another node, if no clearance is granted before."""
        if not self.is_registered:
            return self._heard_at + self._settings.first_answer
        return self._heard_at + max(2 * self._interval, min(self._settings.silence, self._margin()))

    def _send(self, message: ShardMessage) -> None:
        self._out.append(Send(message))

    def _disconnect(self, now: float, reason: str) -> None:
        self._connected, self._beat_at = False, float("inf")
        self._out.append(Disconnect(reason))

    def _on_connected(self, event: Connected, now: float) -> None:
        if not self.shard.incarnation:
            self.shard.incarnation = self._new_incarnation()
        self._connected, self._heard_at = True, now
        self._sent.clear()
        hello = ShardHello(shard=self.shard, known_index=self._known_index, holdings=self.hosting.holdings())
        self._send(ShardMessage(hello=hello))
        if not self.is_registered:
            return
        self._beat_at = now
        if self._leaving:
            self._send(ShardMessage(leave=ShardLeave()))
        if (report := self.reports.again()) is not None:
            self._send(ShardMessage(report=report))

    def _on_disconnected(self, event: Disconnected, now: float) -> None:
        self._connected, self._beat_at = False, float("inf")
        self._refused(event.code, event.reason, now)

    def _refused(self, code: str, reason: str, now: float) -> None:
        if code == _FENCED:
            self._fence(reason, now)
        elif code in _HOPELESS and not self.is_registered:
            self._end((code, reason))
        elif code == _MALFORMED and self._error is None:
            self._note(ERROR, f"the cluster refuses the shard, so everything is released: {reason}")
            self._on_give_up(GiveUp((code, reason)), now)
        elif code != self._problem and now >= self._noted_at.get(code, float("-inf")) + _NOTED_AGAIN_S:
            self._problem, self._noted_at[code] = code, now
            self._note(WARNING, f"no session with the cluster, still trying: {reason}")

    def _on_resized(self, event: Resized, now: float) -> None:
        del self.shard.pallets[:]
        self.shard.pallets.extend(event.pallets)
        self.hosting.take(one.pallet for one in event.pallets)
        if self._connected:
            self._send(ShardMessage(hello=ShardHello(shard=self.shard, known_index=self._known_index)))

    def _on_received(self, event: Received, now: float) -> None:
        said = event.instruction
        kind = said.WhichOneof("instruction")
        if not self._connected or kind is None:
            return
        if kind in ("attach", "detach", "update", "prepare"):
            if said.index < self._known_index:
                self._note(ERROR, f"the node lags: its index is {said.index}, and {self._known_index} is known here")
                return
            self._on_duties(said, kind)
        elif kind == "grant":
            self._on_grant(said.grant, now)
        elif kind == "welcome":
            self._on_welcome(said, now)
        elif kind == "recorded":
            self.reports.recorded(said.recorded.sequence)
        elif kind == "refused":
            self._disconnect(now, said.refused.message)
            self._refused(said.refused.code, said.refused.message, now)
        elif kind == "goodbye":
            # The node knows of no duty that is left to release, and needs no further report.
            self._on_give_up(GiveUp(), now)
            self._farewell = now
        self._known_index = max(self._known_index, said.index)

    def _on_duties(self, said: ShardInstruction, kind: str) -> None:
        if kind == "detach":
            for holding in said.detach.duties:
                self.hosting.detach(holding)
        elif self._fenced or self._giving_up:
            return
        elif kind == "attach":
            for duty in said.attach.duties:
                self.hosting.attach(duty)
        elif kind == "update":
            for duty in said.update.duties:
                self.hosting.update(duty)
        else:
            for duty in said.prepare.duties:
                self.hosting.prepare(duty)

    def _on_welcome(self, said: ShardInstruction, now: float) -> None:
        self._interval = said.welcome.heartbeat_interval_ms / 1000
        self._heard_at, self._problem = now, ""
        self._noted_at.clear()
        self._note_unknown(tuple(said.welcome.unknown_pallets))
        if self.is_registered:
            return
        self.is_registered = True
        self._beat_at = now
        if self._leaving:
            self._send(ShardMessage(leave=ShardLeave()))

    def _note_unknown(self, pallets: tuple[str, ...]) -> None:
        """Warn, once, of the shard's pallets that nobody has created."""
        if pallets and pallets != self._unknown:
            named = ", ".join(pallets[:_NAMED]) + (f" and {len(pallets) - _NAMED:,} more" if pallets[_NAMED:] else "")
            how = f"minkactl pallet create {pallets[0]}, or minka.duties.Client.create_pallet"
            self._note(WARNING, f"no duties come from pallets that don't exist: {named}; create them: {how}")
        self._unknown = pallets

    # Clearance

    def _beat(self, now: float) -> None:
        self._sequence += 1
        self._sent[self._sequence] = now
        while len(self._sent) > _SENT_KEPT:
            del self._sent[next(iter(self._sent))]
        self._beat_at = now + self._interval
        self._send(ShardMessage(heartbeat=ShardHeartbeat(sequence=self._sequence)))

    def _on_grant(self, grant: ShardGrant, now: float) -> None:
        sent_at = self._sent.get(grant.sequence)
        if sent_at is None or self._fenced:
            return
        for sequence in [known for known in self._sent if known <= grant.sequence]:
            del self._sent[sequence]
        self._heard_at = now
        seconds = grant.clearance_ms / 1000
        self._clearance = max(self._clearance, seconds)
        self.until = max(self.until, sent_at + seconds)
        if self._releasing and now < self._release_at():
            self._releasing = False  # even if a detach still hangs, since no other duty waits for it

    def _watch_clearance(self, now: float) -> None:
        """Begin to release everything when the clearance gets short. If the clearance ends before everything is
        released, end the process, or only log an error if `ends_process` is False.
        """
        if not self.hosting.live:
            if self._releasing and now < self._release_at():
                self._releasing = False
            return
        if not self._releasing and now >= self._release_at():
            left = self.until - now
            # If the process was paused until after the end of the clearance, the delegate still gets some time.
            self._patience = now + max(self._margin(), 0.1) if left <= 0 else float("-inf")
            self._releasing = True
            why = "has ended" if left <= 0 else f"ends in {left:.1f} s"
            self._note(WARNING, f"the clearance {why}: everything is released ({self.hosting.live} duties)")
            self.hosting.release_all(unbegun=False)
        if self._releasing and self.until <= now and self._patience <= now:
            self._patience = float("inf")  # so that the text is logged only once
            text = f"the delegate has not released {self.hosting.live} duties, and the clearance has ended"
            if self.ends_process:
                self._ended = True
                self._out.append(EndProcess(text))
            else:
                self._note(ERROR, text)
                if self._loop_closed:
                    self._end(self._error)

    def _fence(self, reason: str, now: float) -> None:
        """Release everything: the cluster considers this process dead, and may have given its duties to other
        shards.
        """
        if self._fenced:
            return
        self._note(WARNING, f"the cluster considers this process dead, so everything is released: {reason}")
        self._end_clearance(now)

    def _end_clearance(self, now: float) -> None:
        self._fenced = self._releasing = True
        self.until = min(self.until, now)
        self._patience = now + max(self._margin(), 0.1)
        self.hosting.release_all(unbegun=True)

    def _renew(self) -> None:
        """Begin again as another incarnation, once the former one has released everything."""
        if not self._fenced or self.hosting.records:
            return
        if self._leaving or self._giving_up:
            self._end(self._error)
            return
        self.shard.incarnation = self._new_incarnation()
        self._fenced = self._releasing = self.is_registered = False
        self.reports = self.hosting.forget_reports()
        self.until, self._patience = float("-inf"), float("-inf")
        if self._connected:
            self._connected, self._beat_at = False, float("inf")
            self._out.append(Disconnect("the shard begins again with a new identity"))

    # Delegate

    def _on_call_ended(self, event: CallEnded, now: float) -> None:
        if event.reported is not None or self.hosting.is_report(event.call):
            self.hosting.reported(event.call, event.error, event.reported or {}, now)
        else:
            self.hosting.ended(event.call, event.error, now)

    # The end

    def _on_leave(self, event: Leave, now: float) -> None:
        if self._leaving:
            return
        self._leaving = True
        if not self.is_registered:
            self._on_give_up(GiveUp(), now)  # the cluster doesn't know the shard, and the shard has no duties
        elif self._connected:
            self._send(ShardMessage(leave=ShardLeave()))

    def _on_give_up(self, event: GiveUp, now: float) -> None:
        self._error = self._error or event.error
        if not self._giving_up:
            self._giving_up = True
            self.hosting.release_all(unbegun=True)

    def _on_loop_closed(self, event: LoopClosed, now: float) -> None:
        """Give up, and end the clearance. Without the loop, coroutines of the delegate can't release duties; only plain
        functions still can.
        """
        if self._loop_closed:
            return
        self._loop_closed = True
        text = "the event loop was closed before the shard had ended"
        self._note(ERROR, text)
        self._on_give_up(GiveUp((_MALFORMED, text)), now)
        self._end_clearance(now)

    def _end_if_done(self, now: float) -> None:
        """After GiveUp, end as soon as everything is released, and the last report is recorded or can't be sent in
        time.
        """
        if not self._giving_up or self.hosting.records:
            return
        self._farewell = min(self._farewell, now + _FAREWELL_S)
        if self.reports.is_empty or not self._connected or now >= self._farewell:
            self._end(self._error)

    def _end(self, error: tuple[str, str] | None) -> None:
        if not self._ended:
            self._ended = True
            self._out.append(Stopped(error))
