"""Decodes and checks the bodies of clients' requests."""

from collections.abc import Sequence

from minka.cluster.key_ranges import MAX_KEY_BYTES
from minka.errors import Code, MinkaError
from minka.wire import kv_frames
from minka.wire.key_operations import (
    MAX_OPERATIONS,
    Append,
    Operation,
    Set,
    SetAllIfAbsent,
    SetRange,
    decode_operations,
)
from minka.wire.kv_frames import WriteBody
from minkad.core.operations import keys_of


def checked_write(body: bytes) -> WriteBody:
    """The decoded body of a write. Raises INVALID_ARGUMENT, TOO_LARGE."""
    if len(body) > kv_frames.MAX_BODY_BYTES:
        raise MinkaError(Code.TOO_LARGE, f"a batch of {len(body)} bytes; {kv_frames.MAX_BODY_BYTES} is the limit")
    try:
        write = kv_frames.decode_write(body)
    except kv_frames.UNDECODABLE as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the body of a write: {error}") from error
    keys, values = write.keys, write.values
    if not keys or len(keys) != len(values):
        text = f"the body of a write has {len(keys)} keys and {len(values)} values"
        raise MinkaError(Code.INVALID_ARGUMENT, text)
    _check_keys(keys, len(body))
    if len(body) > kv_frames.MAX_VALUE_BYTES and max(len(value or b"") for value in values) > kv_frames.MAX_VALUE_BYTES:
        raise MinkaError(Code.TOO_LARGE, "a value is over its limit")
    return write


def checked_read(body: bytes) -> list[bytes]:
    """The keys to read. Raises INVALID_ARGUMENT, TOO_LARGE."""
    if len(body) > kv_frames.MAX_BODY_BYTES:
        raise MinkaError(Code.TOO_LARGE, f"a batch of {len(body)} bytes; {kv_frames.MAX_BODY_BYTES} is the limit")
    try:
        keys = kv_frames.decode_read(body)
    except kv_frames.UNDECODABLE as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the body of a read: {error}") from error
    _check_keys(keys, len(body))
    return keys


def checked_scan(body: bytes) -> kv_frames.ScanBody:
    """The decoded body of a scan. Raises INVALID_ARGUMENT, TOO_LARGE."""
    try:
        scan = kv_frames.decode_scan(body)
    except kv_frames.UNDECODABLE as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the body of a scan: {error}") from error
    if max(len(scan.start), len(scan.end)) > MAX_KEY_BYTES + 1:
        raise MinkaError(Code.TOO_LARGE, "a bound of a scan is over the limit of a key")
    if (scan.end and scan.start >= scan.end) or scan.max_rows < 1 or scan.max_bytes < 1:
        raise MinkaError(Code.INVALID_ARGUMENT, "a scan of nothing")
    return scan


def _check_keys(keys: list[bytes], size: int) -> None:
    # A key is shorter than its body, so in a small body no key can be too long.
    if size > MAX_KEY_BYTES and max(map(len, keys), default=0) > MAX_KEY_BYTES:
        raise MinkaError(Code.TOO_LARGE, "a key is over its limit")
    if b"" in keys:
        raise MinkaError(Code.INVALID_ARGUMENT, "a key is empty")


def element_count(body: bytes) -> int:
    """The number of elements of a MessagePack array, read from its first bytes; 0 if `body` isn't an array."""
    if body[:1] == b"\xdc":
        return int.from_bytes(body[1:3], "big")
    if body[:1] == b"\xdd":
        return int.from_bytes(body[1:5], "big")
    return body[0] & 0x0F if body and body[0] >> 4 == 9 else 0


def checked_operations(body: bytes) -> list[Operation]:
    """The decoded operations. Raises INVALID_ARGUMENT, TOO_LARGE."""
    if len(body) > kv_frames.MAX_BODY_BYTES:
        raise MinkaError(Code.TOO_LARGE, f"a batch of {len(body)} bytes; {kv_frames.MAX_BODY_BYTES} is the limit")
    try:
        operations = decode_operations(body)
    except kv_frames.UNDECODABLE as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"operations: {error}") from error
    for one in operations:
        if isinstance(one, SetAllIfAbsent):
            if not one.keys or len(one.keys) != len(one.values) or len(one.keys) > MAX_OPERATIONS:
                text = f"an operation with {len(one.keys)} keys and {len(one.values)} values"
                raise MinkaError(Code.INVALID_ARGUMENT, text)
            _check_values(one.values)
        elif isinstance(one, (Set, Append, SetRange)):
            _check_values([one.value or b""])
    _check_keys(keys_of(operations), len(body))
    return operations


def _check_values(values: Sequence[bytes]) -> None:
    if max(map(len, values)) > kv_frames.MAX_VALUE_BYTES:
        raise MinkaError(Code.TOO_LARGE, "a value is over its limit")
