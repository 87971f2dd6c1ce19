"""The commands about pallets, duties and shards."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from minka.v1.duties_pb2 import Shard
from minka.v1.duty_api_pb2 import DutyChange, PalletChange
from minka.v1.shards_pb2 import ShardReported


@dataclass(frozen=True, slots=True)
class ChangePallets:
    """A person wants all of these changes, or none."""

    changes: Sequence[PalletChange]


@dataclass(frozen=True, slots=True)
class ChangeDuties:
    """A client wants all of these changes, or none. The payloads are stored already."""

    changes: Sequence[DutyChange]


@dataclass(frozen=True, slots=True)
class RegisterShard:
    """A shard's process registers. `holder_alive`: the process registered with this name may hold a clearance."""

    shard: Shard
    holder_alive: bool


@dataclass(frozen=True, slots=True)
class FailShards:
    """The failure detector has not heard from these shards for too long. `reasons`: by shard. `unheard`: the shards
    that this controller has never heard; perhaps only their connection to the cluster is lost, not their process.
    """

    reasons: Mapping[str, str]
    unheard: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class NoteFlap:
    """A shard's heartbeat came so late that its clearance was nearly over."""

    shard: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class LeaveShard:
    """A shard's process is about to stop, and releases its duties."""

    shard: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class ReportShards:
    """Shards report about their duties. Reports of a process that isn't registered are ignored."""

    reports: Sequence[ShardReported]
