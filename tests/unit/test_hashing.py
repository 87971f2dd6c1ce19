"""Hashes against published values: the same key falls into the same partition on every platform.

The md5 values are those of Fixed Partitions (Patterns of Distributed Systems): Java's `new BigInteger(digest).abs()`.
"""

import mmh3
import pytest

from minka.cluster.hashing import HASH_FUNCTIONS, crc16, digest_of, md5, murmur3, redis_slots
from minka.v1.cluster_pb2 import HashFunction

NAMES = [b"Alice", b"Bob", b"Mary", b"Philip"]
MD5 = [
    133299819613694460644197938031451912208,
    63479738429015246738359000453022047291,
    37724856304035789372490171084843241126,
    83980963731216160506671196398339418866,
]


def test_md5_values_of_the_pattern() -> None:
    assert [md5(name) for name in NAMES] == MD5


@pytest.mark.parametrize(("count", "slots"), [(3, [0, 1, 2, 2]), (5, [3, 1, 1, 1]), (9, [0, 1, 5, 2])])
def test_tables_of_the_pattern(count: int, slots: list[int]) -> None:
    assert [md5(name) % count for name in NAMES] == slots


# Known answers for seed 0 of MurmurHash3_x86_32 (Austin Appleby's SMHasher): every length of the tail, and more
# than one block. Bytes above 0x7f catch an implementation that reads them as signed.
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"", 0x00000000),
        (b"\x00", 0x514E28B7),
        (b"\x00\x00", 0x30F4C306),
        (b"\x00\x00\x00", 0x85F0B427),
        (b"\x00\x00\x00\x00", 0x2362F9DE),
        (b"\x21\x43\x65\x87", 0xF55B516B),
        (b"\x21\x43\x65", 0x7E4A8634),
        (b"\x21\x43", 0xA0F7B07A),
        (b"\x21", 0x72661CF4),
        (b"\xff\xff\xff\xff", 0x76293B50),
        (b"test", 0xBA6BD213),
        (b"Hello, world!", 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_murmur3_known_answers(key: bytes, expected: int) -> None:
    assert murmur3(key) == expected


def test_the_batch_form_of_murmur3_is_the_same_function() -> None:
    for length in range(70):
        key = bytes(range(200, 200 + min(length, 55))) + bytes(max(0, length - 55))
        assert mmh3.mmh3_32_uintdigest(key) == murmur3(key)


def test_every_hash_function_of_the_protocol_is_implemented() -> None:
    assert set(HASH_FUNCTIONS) == set(HashFunction.values()) - {HashFunction.HASH_FUNCTION_UNSPECIFIED}


# The first slot is the check value of CRC-16/XMODEM. The others are answers of Redis to CLUSTER KEYSLOT.
@pytest.mark.parametrize(
    ("key", "slot"),
    [
        (b"123456789", 0x31C3),
        (b"foo", 12182),
        (b"bar", 5061),
        (b"{foo}.a", 12182),
        (b"a{foo}{bar}", 12182),
        (b"foo{}{bar}", 8363),
        (b"foo{{bar}}zap", 4015),
        (b"{}foo", 9500),
        (b"foo{bar", 15278),
        (b"", 0),
    ],
)
def test_crc16_is_the_slot_of_redis(key: bytes, slot: int) -> None:
    assert crc16(key) == slot


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000, 16_383, 16_384])
def test_each_partition_has_neighbouring_slots_of_redis(count: int) -> None:
    ranges = [redis_slots(slot, count) for slot in range(count)]
    assert [slot for first, last in ranges for slot in range(first, last + 1)] == list(range(16_384))
    digest = digest_of(HashFunction.HASH_FUNCTION_CRC16, count)
    for number in range(300):
        key = b"key-%d" % number
        first, last = ranges[digest(key) % count]
        assert first <= crc16(key) <= last
