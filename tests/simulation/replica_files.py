"""Decodes the parts of a node's log database that the simulation checks. `minkad.replication` writes them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from minka.v1.cluster_pb2 import Partition
from minka.wire.kv_frames import WriteBody
from minkad.core.replication.entries import Mark, decode_entry, is_mark
from minkad.core.state import range_of

if TYPE_CHECKING:
    from tests.simulation.log_disk import LogDisk

META: Final = b"m"
ENTRY: Final = b"p"
_ID_END: Final = 5  # a key begins with a letter and the partition's id in 4 bytes: b"p\x00\x00\x00\x07" of partition 7
_EPOCH_BYTES: Final = 4  # the length of the leader_epoch before the body of an entry

_decode: Final = msgspec.msgpack.Decoder().decode


def row_in(meta: bytes) -> Partition:
    """The row in a replica's meta."""
    return Partition.FromString(_decode(meta)[0])


def partition_of(key: bytes) -> int:
    """The partition in the key of a meta or an entry."""
    return int.from_bytes(key[1:_ID_END], "big")


def offset_of(key: bytes) -> int:
    """The entry's offset in its log."""
    return int.from_bytes(key[_ID_END:], "big")


def epoch_of(value: bytes) -> int:
    """The leader_epoch of an entry."""
    return int.from_bytes(value[:_EPOCH_BYTES], "big")


def mark_in(value: bytes) -> WriteBody | Mark | None:
    """The mark in an entry; None for a write."""
    body = value[_EPOCH_BYTES:]
    return decode_entry(body) if is_mark(body) else None


def entry_keys(disk: "LogDisk", partition_id: int) -> list[bytes]:
    """The keys of all entries of a log, in the order of their offsets."""
    return disk.keys(ENTRY + partition_id.to_bytes(4, "big"), ENTRY + (partition_id + 1).to_bytes(4, "big"))


def partitions_in(disk: "LogDisk") -> Iterator[int]:
    """The partitions that have a meta or an entry."""
    return iter(dict.fromkeys(map(partition_of, [*disk.keys(META, b"n"), *disk.keys(ENTRY, b"q")])))


def brief(row: Partition) -> str:
    """Describe a row in one line."""
    moving = "".join([*(f" +{n}" for n in row.adding_replicas), *(f" -{n}" for n in row.removing_replicas)])
    to = f" → {row.successor}" if row.successor else ""
    range_ = f" {range_of(row)}" if row.start_key or row.end_key else ""
    other = "".join(
        f" {name} {id_}"
        for name, id_ in (
            ("split to", row.splitting and row.split_to),
            ("split from", row.splitting and row.split_from),
            ("merge from", row.merge_from),
            ("merge into", row.merge_into),
        )
        if id_
    )
    return (
        f"partition {row.id}{range_} epoch {row.partition_epoch}, {row.leader or 'nobody'}{to} leads at "
        f"{row.leader_epoch}, {' '.join(row.isr)} of {' '.join(row.replicas)}{moving}{other}"
    )
