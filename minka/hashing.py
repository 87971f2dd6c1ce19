"""key → slot, the same on every platform and in every runtime (Fixed Partitions, Patterns of Distributed Systems)."""

import hashlib
from collections.abc import Callable

import mmh3

from minka.v1.cluster_pb2 import HashFunction


def murmur3(key: bytes) -> int:
    """MurmurHash3 x86 32-bit with seed 0, as an unsigned integer."""
    return mmh3.hash(key, signed=False)


def md5(key: bytes) -> int:
    """The magnitude of the MD5 digest read as a signed big-endian integer: Java's `new BigInteger(digest).abs()`."""
    return abs(int.from_bytes(hashlib.md5(key, usedforsecurity=False).digest(), "big", signed=True))


HASH_FUNCTIONS: dict[HashFunction.ValueType, Callable[[bytes], int]] = {
    HashFunction.HASH_FUNCTION_MURMUR3: murmur3,
    HashFunction.HASH_FUNCTION_MD5: md5,
}
