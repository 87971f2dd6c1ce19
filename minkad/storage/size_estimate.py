"""The size of a database, kept up to date with each write, at a cost that doesn't grow with the database."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

# One in `step` written keys is looked up, by the number of keys in the database:
#     below 1,024     step 1: with few samples, chance could make an error of many percent
#     from 8,192      step 16, which costs little; in between, keys / 512
#     from 278,528    step keys / 16,384: a rewrite of the whole database still looks up about 16,384 keys
#     from 4,194,304  step 256
_ALL_BELOW: Final = 512
_USUAL_STEP: Final = 16
_KEYS_LOOKED_UP: Final = 16_384
_MAX_STEP: Final = 256
_FAR_BEYOND: Final = 0.95  # an estimate is far above a bound if this part of it, less 3 errors, is above the bound
_FEW_VERSIONS: Final = 0.97  # if at least this share of the put bytes is live, keys have few older versions

_STORED: Final = struct.Struct(">qqdd")


@dataclass(slots=True)
class Size:
    """Bytes of keys and values, and keys."""

    bytes: int = 0
    keys: int = 0


class SizeEstimate:
    """Counts the size of written rows exactly, and estimates the size of the old rows that they replace or delete. One
    random key in each block of consecutive writes is looked up, and counts for the whole block (stratified sampling;
    W. G. Cochran, Sampling Techniques, chapter 5). So the number of keys is right, but for one unfinished block, if all
    written keys existed before, or if none did.

    `error` is the standard error of the size: the differences of neighbouring samples show how much sampling errs.
    """

    __slots__ = (
        "_bytes", "_bytes_variance", "_cut", "_keys", "_keys_variance", "_last", "_random", "_skip", "_step", "_tail"
    )  # fmt: skip

    def __init__(self, size: Size | None = None, seed: int = 0) -> None:
        """`seed`: for the random choice of keys to look up."""
        self._random = Random(seed)
        self._bytes = self._keys = 0
        self._bytes_variance = self._keys_variance = 0.0
        self._cut = Size()  # the sum by which `bounded` has lowered the estimate so far
        self._last = 0  # bytes of the old row of the last sampled key
        # The block's length; the keys to be written before its pick; its keys from the pick on.
        self._step = self._skip = self._tail = 0
        if size is not None:
            self._bytes, self._keys = size.bytes, size.keys

    @property
    def size(self) -> Size:
        """The estimate: bytes and keys."""
        return Size(max(0, self._bytes), max(0, self._keys))

    @property
    def error(self) -> float:
        """The standard error of the estimate as a share of it; infinite if nothing is known."""
        # A block counts as a whole from its pick on, and not at all before.
        begun = self._step**2 / 6 if self._step > 1 and self._last else 0.0
        of_bytes = math.sqrt(self._bytes_variance + begun * self._last**2) / max(1, self._bytes)
        return max(of_bytes, math.sqrt(self._keys_variance + begun) / max(1, self._keys))

    def pick(self, count: int) -> list[tuple[int, int]]:
        """Choose the keys to look up before the next `count` keys are written. Returns, for each, its place among these
        `count` keys and the number of keys that it counts for.
        """
        place = self._skip
        if place >= count:
            self._skip = place - count
            return []
        picked = []
        while place < count:
            if self._step:
                picked.append((place, self._step))
                place += self._tail
            self._step = min(max(1, self._keys // _ALL_BELOW), max(_USUAL_STEP, self._keys // _KEYS_LOOKED_UP))
            self._step = min(self._step, _MAX_STEP)
            before = int(self._random.random() * self._step)
            self._tail = self._step - before
            place += before
        self._skip = place - count
        return picked

    def written(self, bytes_: int, keys: int, replaced: Sequence[tuple[int, int]]) -> None:
        """Note that `keys` keys were put, with `bytes_` of keys and values; deletions don't count. `replaced`: for each
        key that was looked up, the bytes of its old row (key and value; 0 without a row), and the number of keys that
        it counts for.
        """
        self._bytes += bytes_
        self._keys += keys
        for found, step in replaced:
            self._bytes -= step * found
            self._keys -= step * (found > 0)
            if step > 1:
                weight = step * (step - 1) / 2
                self._bytes_variance += weight * (found - self._last) ** 2
                self._keys_variance += weight * ((found > 0) != (self._last > 0))
            self._last = found

    def measured(self, size: Size, before: "SizeEstimate") -> None:
        """Note the measured `size` of the data at the time when `before` was copied."""
        self._step = self._skip = self._tail = 0  # the unfinished block is from before
        self._bytes = size.bytes + (self._bytes + self._cut.bytes) - (before._bytes + before._cut.bytes)
        self._keys = size.keys + (self._keys + self._cut.keys) - (before._keys + before._cut.keys)
        if math.isfinite(before._bytes_variance):
            self._bytes_variance = max(0.0, self._bytes_variance - before._bytes_variance)
            self._keys_variance = max(0.0, self._keys_variance - before._keys_variance)
        else:
            self._bytes_variance = self._keys_variance = 0.0

    def bounded(self, most: Size) -> None:
        """Note that the size is at most `most`. A higher estimate is lowered to this bound. If it was far above, the
        new estimate is doubtful, too.
        """
        if self._bytes * (_FAR_BEYOND - 3 * self.error) > most.bytes:
            self.doubt()
        self._cut.bytes += max(0, self._bytes - most.bytes)
        self._cut.keys += max(0, self._keys - most.keys)
        self._bytes, self._keys = min(self._bytes, most.bytes), min(self._keys, most.keys)

    def reduced(self, before: Size, after: Size) -> None:
        """Note that a compaction has reduced the size of all puts from `before` to `after`. Nobody knows which keys it
        has removed.
        """
        if self._bytes < _FEW_VERSIONS * before.bytes:
            self.doubt()  # all overwritten rows may be in the remaining part, or in the removed part
        self._bytes, self._keys = after.bytes, after.keys

    def doubt(self) -> None:
        """Note that the estimate may be far off."""
        self._bytes_variance = self._keys_variance = math.inf

    def copy(self) -> "SizeEstimate":
        """A copy of the estimate as it is now."""
        made = SizeEstimate.decode(self.encode())
        made._cut = Size(self._cut.bytes, self._cut.keys)
        return made

    def encode(self) -> bytes:
        """The stored bytes."""
        return _STORED.pack(self._bytes, self._keys, self._bytes_variance, self._keys_variance)

    @classmethod
    def decode(cls, data: bytes) -> "SizeEstimate":
        """The content of the stored bytes."""
        made = cls()
        made._bytes, made._keys, made._bytes_variance, made._keys_variance = _STORED.unpack(data)
        return made
