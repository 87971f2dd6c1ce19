"""Instructions of replicas to the shell. The result comes back as an event; one that comes too late is recognised and
ignored.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from minka.cluster.key_ranges import KeyRange
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import FinishMergeRequest, FinishSplitRequest, HandOverRequest
from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.peer_messages import Ack, KeptFile


@dataclass(frozen=True, slots=True)
class StartSending:
    """A node follows from now on: take `progress.next_append` whenever the stream to it has room."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class StopSending:
    """The node no longer follows."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Send:
    """There is something to send to a follower: take `progress.next_append`."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class SendWatermark:
    """More is committed: tell the follower with the next entries, or soon. `at_once`: clients wait until it knows."""

    progress: Progress
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class SendCheckpoint:
    """A follower needs a checkpoint; then call `Node.checkpoint_sent` or `checkpoint_failed`. `kept`: the files that
    the follower has of an earlier checkpoint whose transfer broke. `tries`: the number begun for this follower, this
    one included; `reason`: why the last one wasn't enough; `was_outrun`: the log after it fell behind the writes.
    """

    progress: Progress
    kept: Sequence[KeptFile]
    tries: int = 1
    reason: str = ""
    was_outrun: bool = False


@dataclass(frozen=True, slots=True)
class CancelCheckpoint:
    """The checkpoint is no longer wanted."""

    progress: Progress


@dataclass(slots=True)
class IsrProposal:
    """An in-sync set to be recorded, and the nodes that are eligible beside it. It is proposed until the outcome is
    known. `in_doubt`: an earlier try may yet be recorded.
    """

    partition_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[str, ...]
    eligible: tuple[str, ...] = ()
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class AskHandOver:
    """Ask the controller; `Node.hand_over_answered` takes the answer."""

    request: HandOverRequest


@dataclass(frozen=True, slots=True)
class AskFinishSplit:
    """Ask the controller; `Node.split_answered` takes the answer."""

    request: FinishSplitRequest


@dataclass(frozen=True, slots=True)
class AskFinishMerge:
    """Ask the controller; `Node.merge_answered` takes the answer."""

    request: FinishMergeRequest


@dataclass(frozen=True, slots=True)
class Reached:
    """A named step was reached, where tests let the process fail."""

    place: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This node won't learn the outcome of the waiting writes: they fail with OUTCOME_UNKNOWN, for this reason."""

    partition_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """Compact a range of the right partition's data, to remove its deleted keys; then call `Node.room_made`."""

    left_id: int
    right_id: int
    range: KeyRange


@dataclass(frozen=True, slots=True)
class GateOpened:
    """Writes go on here or at the successor, after they waited for `seconds`."""

    partition_id: int
    successor: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SyncEpoch:
    """Make it durable that this node leads at this epoch; then call `Node.epoch_stored`."""

    partition_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class OpenData:
    """Open the data of a replica, which takes a while; then call `Node.data_opened` or `data_failed`."""

    partition_id: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Something was appended to a log: make it durable. `on_disk`: on the disk, even in an `async` keyspace."""

    partition_id: int
    on_disk: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Send an answer on the stream on which the partition's leader was heard."""

    stream: object
    ack: Ack


@dataclass(frozen=True, slots=True)
class Apply:
    """There is something to apply below the high watermark."""

    partition_id: int


@dataclass(frozen=True, slots=True)
class RowAdopted:
    """The replica has another row, after the row `was`: make it durable, with the next sync, unless the replica is to
    be deleted; what follows from the row comes with later instructions.
    """

    partition_id: int
    was: Partition


@dataclass(frozen=True, slots=True)
class MarkPassed:
    """A mark that was carried out in a task is applied."""

    partition_id: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Let requests that wait for the partition look again: it began or stopped serving, or has another row."""

    partition_id: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `Node.tick` at this time of the node's clock."""

    partition_id: int
    at: float


class Level(enum.IntEnum):
    """The levels of `logging`."""

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
    | OpenData
    | Sync
    | Answer
    | Apply
    | RowAdopted
    | MarkPassed
    | Changed
    | WakeAt
    | Report
)


class Outbox:
    """The instructions of all replicas of a node, in their order, until the event that caused them is over."""

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []

    def __bool__(self) -> bool:
        """True if there are any."""
        return bool(self._instructions)

    def put(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)

    def take(self) -> list[Instruction]:
        """All instructions since the last call."""
        taken, self._instructions = self._instructions, []
        return taken

    def report(self, level: Level, text: str, **names: object) -> None:
        self.put(Report(level, text, names))
