"""The messages of a leader and its followers about one partition; `minkad.replication.sending` carries them."""

from enum import IntEnum

import msgspec


class Entry(msgspec.Struct, array_like=True, gc=False):
    """An entry of a partition's log; its offset follows from its place."""

    leader_epoch: int
    body: bytes


class Append(msgspec.Struct, array_like=True, gc=False):
    """The entries after `prev_offset`, the leader's high watermark, and where its epoch starts: before that, more may
    be committed than the high watermark says.

    With `probe` it asks where the follower stands. With `truncate`, the follower's log first has to end at
    `prev_offset`: the leader lacks the follower's entries after it.

    `generation`, of the leader's row, tells a follower if its own row is older, so that the range in it may be too
    large. A probe, and a leader of an earlier version, send 0.
    """

    partition_id: int
    leader_epoch: int
    prev_offset: int
    high_watermark: int
    epoch_start: int
    entries: list[Entry]
    probe: bool = False
    truncate: bool = False
    generation: int = 0


class Standing(IntEnum):
    """The meaning of an Ack."""

    STORED = 0  # everything up to the offset is in the log here, as durably as the keyspace asks
    NEEDS_CHECKPOINT = 1  # the log or the data here can't be continued


class KeptFile(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A file of a checkpoint whose transfer broke, with its size in bytes and its CRC-32."""

    name: str
    size: int
    checksum: int


class Ack(msgspec.Struct, array_like=True, gc=False):
    """A follower's answer. The answer to a probe also has the leaderships along the follower's log, as (first offset,
    leader_epoch), and the files that are left of a checkpoint whose transfer broke. `attached`: the data of a split's
    child is still in its parent's database.
    """

    partition_id: int
    leader_epoch: int
    standing: int
    offset: int
    lineage: list[tuple[int, int]] | None = None
    kept: list[KeptFile] = []
    attached: bool = False
