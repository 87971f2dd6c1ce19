"""What a leader and its followers say to each other of one partition. How it travels: `minkad.replication.frames`."""

from enum import IntEnum

import msgspec


class Entry(msgspec.Struct, array_like=True, gc=False):
    """An entry of a partition's log; its offset follows from its place."""

    leader_epoch: int
    body: bytes


class Append(msgspec.Struct, array_like=True, gc=False):
    """The entries after `prev_offset`, what is committed, and where the leader's epoch starts, before which more may
    have been.

    With `probe`, a question for where the follower stands. With `truncate`, the follower's log is to end at
    `prev_offset` first: the leader doesn't have what comes after it there.
    """

    partition_id: int
    leader_epoch: int
    prev_offset: int
    high_watermark: int
    epoch_start: int
    entries: list[Entry]
    probe: bool = False
    truncate: bool = False


class Standing(IntEnum):
    """What an Ack says."""

    STORED = 0  # everything up to the offset is in the log here, as durably as the keyspace asks
    NEEDS_CHECKPOINT = 1  # what is here can't be continued


class KeptFile(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A file that is left of a checkpoint whose transfer broke: its size in bytes, its CRC-32."""

    name: str
    size: int
    checksum: int


class Ack(msgspec.Struct, array_like=True, gc=False):
    """A follower's answer. The answer to a probe also has the leaderships along the follower's log, as (first offset,
    leader_epoch), and what is left of a checkpoint whose transfer broke.
    """

    partition_id: int
    leader_epoch: int
    standing: int
    offset: int
    lineage: list[tuple[int, int]] | None = None
    kept: list[KeptFile] = []
