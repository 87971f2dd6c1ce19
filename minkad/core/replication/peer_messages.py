"""The messages between a leader and its followers about one partition; `minkad.replication.sending` sends them."""

from enum import IntEnum

import msgspec


class Entry(msgspec.Struct, array_like=True, gc=False):
    """An entry of a partition's log, without its offset: the first of an append has `prev_offset` + 1, and so on."""

    leader_epoch: int
    body: bytes


class Append(msgspec.Struct, array_like=True, gc=False):
    """The leader's message: entries, or the high watermark alone, or a probe (etcd/raft: MsgApp)."""

    partition_id: int
    leader_epoch: int
    prev_offset: int  # the offset before the first entry
    high_watermark: int
    epoch_start: int  # the leader's `ready_at`; up to here, more may be committed than `high_watermark` says
    entries: list[Entry]
    probe: bool = False  # the question where the follower stands; the offsets are 0, and `entries` is empty
    truncate: bool = False  # first truncate the log to `prev_offset`: the leader lacks the entries after it
    # Of the leader's row. A follower with an older row may have too large a range in it. A probe, and a leader of an
    # earlier version, send 0.
    generation: int = 0


class Standing(IntEnum):
    """The meaning of an Ack."""

    STORED = 0  # the follower has the log up to the offset, as durably as the keyspace asks
    NEEDS_CHECKPOINT = 1  # the follower's log or data is unusable


class KeptFile(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A file of a checkpoint whose transfer broke, with its size in bytes and its CRC-32."""

    name: str
    size: int
    checksum: int


class Ack(msgspec.Struct, array_like=True, gc=False):
    """A follower's answer."""

    partition_id: int
    leader_epoch: int
    standing: int
    offset: int  # the follower's durable offset
    lineage: list[tuple[int, int]] | None = None  # after a probe: (first offset, leader_epoch) of each leadership
    kept: list[KeptFile] = []  # after a probe: the files that are left of a checkpoint whose transfer broke
    attached: bool = False  # the data of this split's child is still in the parent's database
