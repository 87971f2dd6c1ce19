"""Maps a key to its slot, in the same way on every platform and in every runtime (the pattern "Fixed Partitions" of
Patterns of Distributed Systems).
"""

import hashlib
from binascii import crc_hqx
from collections.abc import Callable
from typing import Final

import mmh3

from minka.v1.cluster_pb2 import HashFunction

REDIS_SLOTS: Final = 16_384


def murmur3(key: bytes) -> int:
    """MurmurHash3 x86 32-bit with seed 0, as an unsigned integer."""
    return mmh3.hash(key, signed=False)


def md5(key: bytes) -> int:
    """The absolute value of the MD5 digest as a signed big-endian integer: Java's `new BigInteger(digest).abs()`."""
    return abs(int.from_bytes(hashlib.md5(key, usedforsecurity=False).digest(), "big", signed=True))


def crc16(key: bytes) -> int:
    """The hash slot of Redis Cluster: CRC16 (XMODEM) modulo 16,384. If the text between the first { and the next }
    isn't empty, only this text counts: the keys {user7}.name and {user7}.mail have the same slot.
    """
    start = key.find(b"{") + 1
    if start:
        end = key.find(b"}", start)
        if end > start:
            key = key[start:end]
    return crc_hqx(key, 0) % REDIS_SLOTS


HASH_FUNCTIONS: dict[HashFunction.ValueType, Callable[[bytes], int]] = {
    HashFunction.HASH_FUNCTION_MURMUR3: murmur3,
    HashFunction.HASH_FUNCTION_MD5: md5,
    HashFunction.HASH_FUNCTION_CRC16: crc16,
}


def digest_of(hash_: HashFunction.ValueType, partition_count: int) -> Callable[[bytes], int]:
    """A function that takes a key. Its result modulo the number of partitions is the key's slot. For Murmur3 this is
    the function of the library mmh3 itself: a wrapper would slow down batches, which hash every key. For CRC16,
    `redis_slots` says which of Redis's slots a partition has.
    """
    if hash_ == HashFunction.HASH_FUNCTION_MURMUR3:
        return mmh3.mmh3_32_uintdigest
    if hash_ == HashFunction.HASH_FUNCTION_CRC16:
        return lambda key: crc16(key) * partition_count // REDIS_SLOTS
    return HASH_FUNCTIONS[hash_]


def redis_slots(slot: int, partition_count: int) -> tuple[int, int]:
    """The first and the last of Redis's slots in the partition with this slot, in a keyspace with CRC16."""
    first, after = (-(-number * REDIS_SLOTS // partition_count) for number in (slot, slot + 1))
    return first, after - 1
