"""Instructions of replicas to the shell. Results come back as events; `Node` ignores a result that comes too late."""

import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from minka.cluster.key_ranges import KeyRange
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import FinishMergeRequest, FinishSplitRequest, HandOverRequest
from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.peer_messages import Ack, KeptFile


@dataclass(frozen=True, slots=True)
class StartSending:
    """A node follows from now on: send it `progress.next_append` whenever its stream has room."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class StopSending:
    """The node no longer follows."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Send:
    """There is something to send to a follower: send it `progress.next_append`."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class SendWatermark:
    """More is committed: tell the follower with the next entries, or soon."""

    progress: Progress
    at_once: bool = False  # clients wait until the follower knows


@dataclass(frozen=True, slots=True)
class SendCheckpoint:
    """Send a follower a checkpoint; then call `Node.checkpoint_sent` or `checkpoint_failed`."""

    progress: Progress
    kept: Sequence[KeptFile]  # the files that the follower has of an earlier checkpoint whose transfer broke
    tries: int = 1  # the checkpoints begun for this follower, including this one
    reason: str = ""  # why the checkpoint before this one wasn't enough
    was_outrun: bool = False  # the follower couldn't keep up after that checkpoint: see `Progress.fell_behind`


@dataclass(frozen=True, slots=True)
class CancelCheckpoint:
    """Stop sending the checkpoint: the node no longer follows."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class BringLoadFiles:
    """Let a follower get the files of all loads whose marks are in the log; then call `Node.load_files_brought`."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """Propose an in-sync set to the controller, until the outcome is known."""

    partition_id: int
    leader_epoch: int
    partition_epoch: int  # of the row that the proposal changes
    isr: tuple[str, ...]
    eligible: tuple[str, ...] = ()  # the nodes that are eligible beside `isr`
    in_doubt: bool = False  # the controller may yet record an earlier try


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
    """A replica has reached a named step, at which tests let the process fail."""

    place: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Let the waiting writes fail with OUTCOME_UNKNOWN: for this reason, the node won't learn their outcome."""

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
    """The hand-over's gate is open again: the writes, which waited for `seconds`, go on here or at the successor."""

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
    """Open the data of a replica in the background; then call `Node.data_opened` or `data_failed`."""

    partition_id: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Make the changes of a log durable. `on_disk`: on the disk, even in an `async` keyspace."""

    partition_id: int
    on_disk: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Send an answer on the stream on which the partition's leader was heard."""

    stream: object
    ack: Ack


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the committed entries."""

    partition_id: int


@dataclass(frozen=True, slots=True)
class RowAdopted:
    """The replica has a new row, in place of the row `was`. Make the new row durable with the next sync, unless the
    replica is to be deleted. The consequences of the row come as later instructions.
    """

    partition_id: int
    was: Partition


@dataclass(frozen=True, slots=True)
class MarkPassed:
    """The shell carried a mark out in a task, and has applied it."""

    partition_id: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Let requests that wait for the partition look again: it serves now, or no longer, or has another row."""

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
    | BringLoadFiles
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


class Outbox(deque[Instruction]):
    """The instructions of all replicas of a node that aren't carried out yet, the oldest first."""

    def report(self, level: Level, text: str, **names: object) -> None:
        self.append(Report(level, text, names))
