"""The input and the output of `minka.duties._machine`: the machine takes the events that happen to a shard, and
returns instructions, which the shard's process carries out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from minka.v1.duties_pb2 import PalletCapacity
from minka.v1.shards_pb2 import HeldDuty, ShardInstruction, ShardMessage

MAX_CALL_DUTIES: Final = 1_000  # the most duties in one call to a delegate


class Method(Enum):
    """A method of the delegate. If several methods are due for a pallet, the first in this list is called first."""

    DETACH = "detach"
    UPDATE = "update"
    ATTACH = "attach"
    PREPARE = "prepare"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """A shard's waiting times, in seconds, and its number of tries."""

    call_timeout: float = 30.0  # the longest time that one call to the delegate may take
    retry_first: float = 0.1  # the pause after the first failure of a duty; each further pause is twice as long
    retry_most: float = 5.0  # the longest of these pauses
    tries: int = 5  # a duty goes to another shard after this many failed calls for it alone: attach, update, prepare
    report_interval: float = 1.0  # the time between two calls that ask the delegate which duties it holds
    weight_interval: float = 10.0  # the least time between two reports of one duty's weight
    weight_change: float = 0.1  # the least change of a weight that is reported: 0.1 is a tenth of the weight
    first_answer: float = 3.0  # the shard leaves a node that hasn't answered the first message for this long
    # The shard leaves a node that grants no clearance for this long, or for a third of the clearance if that is less,
    # but never before two intervals of heartbeats.
    silence: float = 1.0


# Events


@dataclass(frozen=True, slots=True)
class Connected:
    """A session has begun; nothing has been sent on it yet."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The session has ended, or could not begin."""

    code: str  # a name of minka.errors.Code
    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    """The node has sent this instruction."""

    instruction: ShardInstruction


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The delegate's method returned or raised."""

    call: int
    error: str | None = None
    reported: Mapping[tuple[int, int], int | None] | None = None  # only for Method.REPORT: weights by number and epoch


@dataclass(frozen=True, slots=True)
class CallOverdue:
    """The delegate's method has exceeded its time limit, and can't be ended. Calls for the pallet's other duties don't
    wait for it.
    """

    call: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The process is about to stop. Its duties go to other shards one after the other; the delegate releases each one
    first.
    """


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The process stops now. Its delegate releases all duties, even if the process has no session with a node."""

    error: tuple[str, str] | None = None  # a code and a text; None if the user asked for the end


@dataclass(frozen=True, slots=True)
class LoopClosed:
    """The user's event loop is closed, so the delegate's coroutines can no longer be called."""


@dataclass(frozen=True, slots=True)
class Resized:
    """From now on the process takes duties of these pallets, up to the capacity that is stated here for each pallet."""

    pallets: tuple[PalletCapacity, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed, and nothing else has happened."""


Event = Connected | Disconnected | Received | CallEnded | CallOverdue | Leave | GiveUp | LoopClosed | Resized | Tick

# Instructions


@dataclass(frozen=True, slots=True)
class Send:
    """Send this message on the session."""

    message: ShardMessage


@dataclass(frozen=True, slots=True)
class Disconnect:
    """End the session, if there is one, and begin one with another node."""

    reason: str


@dataclass(frozen=True, slots=True)
class CallDelegate:
    """Call the method with the duties, for at most `timeout` seconds. A CallEnded always follows, perhaps after a
    CallOverdue.
    """

    call: int
    method: Method
    pallet: str  # "" for Method.REPORT
    duties: tuple[HeldDuty, ...]
    timeout: float


@dataclass(frozen=True, slots=True)
class CancelCall:
    """Ask the delegate's method to end as soon as it can."""

    call: int
    reason: str


@dataclass(frozen=True, slots=True)
class EndProcess:
    """End the process at once, since it may still act for duties that other shards get."""

    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Write the text to the log, with this level of the module `logging`."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The shard has stopped. `error` is a code and a text; None if the user asked the shard to stop."""

    error: tuple[str, str] | None = None


Instruction = Send | Disconnect | CallDelegate | CancelCall | EndProcess | Note | Stopped
