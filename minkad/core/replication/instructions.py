"""What replicas ask the shell to do. What comes of it comes back as an event; a late one is recognised and ignored."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minka.ranges import KeyRange
from minka.v1.coordinator_pb2 import FinishMergeRequest, FinishSplitRequest, HandOverRequest
from minkad.core.replication.messages import Ack, KeptFile
from minkad.core.replication.progress import Progress


@dataclass(frozen=True, slots=True)
class StartSending:
    """A node follows from now on: take `progress.next_append` whenever the stream to it has room."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class StopSending:
    """It no longer follows."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Send:
    """There is something to send to a follower: take `progress.next_append`."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class SendWatermark:
    """More is committed: tell it with the next entries, or soon."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class SendCheckpoint:
    """A follower needs one: `Leader.checkpoint_sent` or `checkpoint_failed` says how it ended. `kept`: what the
    follower has of an earlier one whose transfer broke.
    """

    progress: Progress
    kept: Sequence[KeptFile]


@dataclass(frozen=True, slots=True)
class CancelCheckpoint:
    """It is no longer wanted."""

    progress: Progress


@dataclass(slots=True)
class IsrProposal:
    """An in-sync set that is to be recorded, and whose outcome isn't known. It is proposed until that is known, also
    while an earlier try may yet be recorded (`in_doubt`).
    """

    partition_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[str, ...]
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class AskHandOver:
    """Ask the controller; `Leader.hand_over_answered` takes what it says."""

    request: HandOverRequest


@dataclass(frozen=True, slots=True)
class AskFinishSplit:
    """Ask the controller; `Splits.finish_answered` takes what it says."""

    request: FinishSplitRequest


@dataclass(frozen=True, slots=True)
class AskFinishMerge:
    """Ask the controller; `Merge.finish_answered` takes what it says."""

    request: FinishMergeRequest


@dataclass(frozen=True, slots=True)
class Reached:
    """A step that has a name, at which tests let the process fail."""

    place: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Nobody here learns what becomes of the writes that wait: their outcome is unknown, for this reason."""

    partition_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """Clear away what is left of deleted keys in a range of the right one's data; `Replicas.cleared` then."""

    left_id: int
    right_id: int
    range: KeyRange


@dataclass(frozen=True, slots=True)
class GateOpened:
    """They go on, or somebody else takes them, after so many seconds."""

    partition_id: int
    successor: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SyncEpoch:
    """Make durable that this node leads at this epoch; `Leader.epoch_durable` then."""

    partition_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Something was appended to a log: make it durable; with `on_disk`, do not stop at the operating system."""

    partition_id: int
    on_disk: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Send an answer on the stream on which the leader of the partition was heard."""

    stream: object
    ack: Ack


@dataclass(frozen=True, slots=True)
class Apply:
    """There is something to apply below the high watermark."""

    partition_id: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Whoever waits for the partition looks again: it serves, or doesn't, or at another row."""

    partition_id: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `Replica.tick` at this time of the node's clock."""

    partition_id: int
    at: float


class Level(enum.IntEnum):
    """As in `logging`."""

    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Report:
    """A line for the log."""

    level: Level
    text: str
    names: dict[str, object]


Instruction = (
    StartSending
    | StopSending
    | Send
    | SendWatermark
    | SendCheckpoint
    | CancelCheckpoint
    | IsrProposal
    | AskHandOver
    | AskFinishSplit
    | AskFinishMerge
    | Reached
    | GiveUp
    | MakeRoom
    | GateOpened
    | SyncEpoch
    | Sync
    | Answer
    | Apply
    | Changed
    | WakeAt
    | Report
)


class Outbox:
    """The instructions of all replicas of a node, in their order."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when there is one after there was none: the shell is to take them soon."""
        self._wake = wake
        self._instructions: list[Instruction] = []

    def put(self, instruction: Instruction) -> None:
        """The next."""
        if not self._instructions:
            self._wake()
        self._instructions.append(instruction)

    def take(self) -> list[Instruction]:
        """All since the last call."""
        taken, self._instructions = self._instructions, []
        return taken

    def report(self, level: Level, text: str, **names: object) -> None:
        """A line for the log."""
        self.put(Report(level, text, names))
