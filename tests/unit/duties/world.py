"""A shard's state machine with a delegate and a node. The test ends each call of the delegate, and chooses the node's
messages.
"""

import itertools
from collections.abc import Iterable

from minka.duties._events import (
    CallDelegate,
    CallEnded,
    CallOverdue,
    CancelCall,
    Connected,
    Disconnect,
    EndProcess,
    Event,
    Instruction,
    MachineSettings,
    Method,
    Note,
    Received,
    Send,
    Stopped,
    Tick,
)
from minka.duties._machine import ShardMachine
from minka.v1.duties_pb2 import PalletCapacity, Shard
from minka.v1.shards_pb2 import (
    DutiesToAttach,
    DutiesToDetach,
    DutiesToPrepare,
    DutiesToUpdate,
    HeldDuty,
    Holding,
    ShardGoodbye,
    ShardGrant,
    ShardInstruction,
    ShardMessage,
    ShardRecorded,
    ShardReport,
    ShardWelcome,
)

CLEARANCE = 3.0
ALL = tuple(Method)
_MAX_TICKS = 1_000  # ticks in one wait of a few seconds; more of them mean an endless loop


def held(
    number: int, epoch: int, *, version: int = 1, pallet: str = "feeds", weight: int = 0, lazy: bool = False
) -> HeldDuty:
    """A duty, as a node describes it in its messages."""
    return HeldDuty(duty=number, epoch=epoch, pallet=pallet, id=f"d{number}", version=version, weight=weight, lazy=lazy)


class World:
    """A shard's state machine and its surroundings. Time passes only when a test says so."""

    def __init__(self, methods: Iterable[Method] = ALL, settings: MachineSettings | None = None) -> None:
        row = Shard(name="s", pallets=[PalletCapacity(pallet="feeds"), PalletCapacity(pallet="mail")])
        ids = (f"process {n}" for n in itertools.count(1))
        self.machine = ShardMachine(
            row, methods, settings or MachineSettings(), new_incarnation=lambda: next(ids), ends_process=True
        )
        self.now = 100.0
        self.index = 1
        self.calls: dict[int, CallDelegate] = {}
        self.history: list[tuple[str, list[int]]] = []  # the calls of the delegate: method and duties
        self.late: set[int] = set()  # calls that have taken too long
        self.holds: dict[int, int] = {}  # the epochs of the delegate's duties
        self.said: list[ShardMessage] = []
        self.reports: list[ShardReport] = []
        self.cancelled: list[int] = []
        self.connected = False
        self.answers = True  # if true, the node answers every heartbeat at once
        self.ended: list[EndProcess] = []
        self.stopped: list[Stopped] = []
        self.notes: list[Note] = []

    # The machine

    def tell(self, event: Event) -> None:
        """Give the machine an event, and carry out its instructions."""
        said = len(self.said)
        if isinstance(event, CallOverdue):
            self.late.add(event.call)
        for instruction in self.machine.handle(event, self.now):
            self._take(instruction)
        if self.answers and any(message.HasField("heartbeat") for message in self.said[said:]):
            self.grant()

    def _take(self, instruction: Instruction) -> None:
        match instruction:
            case Send(message):
                assert self.connected, "a message without a session"
                self.said.append(message)
                if message.HasField("report"):
                    self.reports.append(message.report)
            case CallDelegate():
                self.begin(instruction)
            case CancelCall(call):
                self.cancelled.append(call)
            case Disconnect():
                self.connected = False
            case EndProcess():
                self.ended.append(instruction)
            case Stopped():
                self.stopped.append(instruction)
            case Note():
                self.notes.append(instruction)

    def timely(self) -> list[CallDelegate]:
        """Return the calls under way, except those that have taken too long."""
        return [call for number, call in self.calls.items() if number not in self.late]

    def begin(self, call: CallDelegate) -> None:
        """Begin a call of the delegate."""
        if any(self.machine.hosting.records[duty.duty].apart for duty in call.duties):
            self.late.add(call.call)
        pallets = [other.pallet for other in (*self.timely(), call)]
        assert call.call in self.late or pallets.count(call.pallet) == 1, "two calls for one pallet"
        self.calls[call.call] = call
        self.history.append((call.method.value, [duty.duty for duty in call.duties]))
        if call.method is Method.ATTACH:
            for duty in call.duties:
                assert duty.duty not in self.holds, f"{duty} is attached twice"
                assert self.now < self.machine.until, "there is no clearance"
                self.holds[duty.duty] = duty.epoch

    def pass_time(self, seconds: float) -> None:
        """Let time pass: the machine gets a tick at each moment that it has named."""
        end = self.now + seconds
        ticks_left = _MAX_TICKS
        while (at := self.machine.wake_at()) <= end and not self.stopped and not self.ended:
            ticks_left -= 1
            assert ticks_left, f"it asks for a tick at {at}, again and again"
            self.now = max(self.now, at)
            self.tell(Tick())
        self.now = end
        self.tell(Tick())

    # The delegate

    def end_call(self, error: str | None = None) -> None:
        """End the oldest call."""
        number, call = next(iter(self.calls.items()))
        del self.calls[number]
        took_nothing = call.method is Method.ATTACH and error is not None
        if took_nothing or (call.method is Method.DETACH and error is None):
            for duty in call.duties:
                self.holds.pop(duty.duty, None)  # a lazy duty may be gone already
        reported = None
        if call.method is Method.REPORT and error is None:
            reported = dict.fromkeys(self.holds.items())
        self.tell(CallEnded(number, error, reported))

    def end_calls(self) -> None:
        """End all calls, and those that the machine begins as a result, until none is under way."""
        while self.calls:
            self.end_call()

    # The node

    def connect(self) -> None:
        """Connect the shard to a node, and let the node send its welcome."""
        self.connected = True
        self.tell(Connected())
        self.say(welcome=ShardWelcome(heartbeat_interval_ms=500))

    def say(self, **instruction: object) -> None:
        """Send an instruction of the node to the machine."""
        self.index += 1
        self.tell(Received(ShardInstruction(index=self.index, **instruction)))  # type: ignore[arg-type]

    def grant(self, seconds: float = CLEARANCE) -> None:
        """Answer the last heartbeat with a clearance."""
        beats = [message.heartbeat.sequence for message in self.said if message.HasField("heartbeat")]
        self.say(grant=ShardGrant(sequence=beats[-1], clearance_ms=int(seconds * 1000)))

    def attach(self, *duties: HeldDuty) -> None:
        """Assign these duties."""
        self.say(attach=DutiesToAttach(duties=duties))

    def update(self, *duties: HeldDuty) -> None:
        """Tell the shard of changes to these duties."""
        self.say(update=DutiesToUpdate(duties=duties))

    def prepare(self, *duties: HeldDuty) -> None:
        """Tell the shard to prepare for these duties."""
        self.say(prepare=DutiesToPrepare(duties=duties))

    def detach(self, *pairs: tuple[int, int]) -> None:
        """Ask for the release of these duties."""
        self.say(detach=DutiesToDetach(duties=[Holding(duty=duty, epoch=epoch) for duty, epoch in pairs]))

    def record(self) -> None:
        """Say that the last report is recorded."""
        self.say(recorded=ShardRecorded(sequence=self.reports[-1].sequence))

    def goodbye(self) -> None:
        """Say goodbye: the shard has nothing left."""
        self.say(goodbye=ShardGoodbye())

    def reported(self, what: str) -> list[tuple[int, int]]:
        """Return all elements of this field in the shard's reports so far."""
        return [(one.duty, one.epoch) for report in self.reports for one in getattr(report, what)]
