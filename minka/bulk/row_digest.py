"""The digest of a set of rows: it is equal for equal sets, whatever their order, and other programs can compute it.

A digest has four numbers: the number of rows, the bytes of their keys and values, and the XOR and the sum modulo 2^64
of the rows' hashes. A row's hash is XXH64(value, seed=XXH64(key, seed=42)), as Spark's xxhash64(key, value) computes
it. XOR alone can't tell three equal rows from one; the sum can. Spark leaves null out of a hash, so a row whose value
is null has the hash of its key. A row whose value is empty has another hash.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import Final, Self, TypeAlias

from xxhash import xxh64_intdigest

from minka.v1.loads_pb2 import LoadDigest

_SEED: Final = 42  # Spark's xxhash64 has this seed
_MASK: Final = 2**64 - 1
# Inside of `Digest`, `bytes` is the name of a field, so the type `bytes` has other names there.
_Key: TypeAlias = bytes
_Value: TypeAlias = bytes


@dataclass(slots=True)
class Digest:
    """A digest of rows, as this module's docstring describes it. `xor` and `sum` are from 0 to 2^64 - 1."""

    rows: int = 0
    bytes: int = 0
    xor: int = 0
    sum: int = 0

    def __add__(self, other: "Digest") -> "Digest":
        """The digest of both sets together."""
        total = (self.sum + other.sum) & _MASK
        return Digest(self.rows + other.rows, self.bytes + other.bytes, self.xor ^ other.xor, total)

    def __str__(self) -> str:
        return f"<{self.rows} rows, {self.bytes} bytes, xor {self.xor:016x}, sum {self.sum:016x}>"

    def add(self, key: _Key, value: _Value | None) -> None:
        """Count one more row."""
        hashed = xxh64_intdigest(key, _SEED)
        if value is not None:
            hashed = xxh64_intdigest(value, hashed)
        self.rows += 1
        self.bytes += len(key) + len(value or b"")
        self.xor ^= hashed
        self.sum = (self.sum + hashed) & _MASK

    def add_many(self, keys: Sequence[_Key], values: Sequence[_Value]) -> None:
        """Count many more rows; this costs less for each row than `add`."""
        hash_of = xxh64_intdigest
        hashes = [hash_of(value, hash_of(key, _SEED)) for key, value in zip(keys, values, strict=True)]
        self.rows += len(hashes)
        self.bytes += sum(map(len, keys)) + sum(map(len, values))
        self.xor = reduce(xor, hashes, self.xor)
        self.sum = (self.sum + sum(hashes)) & _MASK

    def to_proto(self) -> LoadDigest:
        """The message of the digest, without the number of rows, for which `LoadFile` has a field of its own."""
        return LoadDigest(bytes=self.bytes, xor=self.xor, sum=self.sum)

    @classmethod
    def from_proto(cls, rows: int, digest: LoadDigest) -> Self:
        """The digest that was sent, with this number of rows."""
        return cls(rows, digest.bytes, digest.xor, digest.sum)

    @classmethod
    def of(cls, pairs: Iterable[tuple[_Key, _Value | None]]) -> Self:
        """The digest of these rows, computed in this process, row by row."""
        digest = cls()
        for key, value in pairs:
            digest.add(key, value)
        return digest
