"""Encodes and decodes keys for whole Arrow arrays of columns at once. The bytes are those of
`minka.rows.encode_key`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from minka.errors import Code, MinkaError
from minka.rows import keys as key_format
from minka.rows.keys import decode_key, encode_key

_Bytes = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]
_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

# The least numbers that need 1, 2, 3 … 8 bytes: 1, 256, 65536 ….
_LEAST_OF_SIZE: Final = np.array([1 << 8 * size for size in range(8)], np.uint64)
_SIGN: Final = np.uint64(1 << 63)
_ALL: Final = ~np.uint64(0)
_PADDING: Final = 18  # the most bytes that are read from the beginning of a column


def key_array(columns: Sequence[pa.Array]) -> pa.BinaryArray:
    """The keys of rows that have these columns: for each row the bytes that `encode_key` gives.

    The types are null, bool, int8 to int64, float, double, string, binary, date32, timestamp, decimal128, and
    binary(16), which is a UUID. Raises MinkaError(INVALID_ARGUMENT) if there is no column, or for a column of another
    type or with text that isn't UTF-8; the error has the column's number (from 1).
    """
    if not columns:
        raise MinkaError(Code.INVALID_ARGUMENT, "a key has at least one column: without one it would be empty")
    pieces: list[bytes | pa.Array] = []
    for number, column in enumerate(columns, 1):
        if len(column) != len(columns[0]):
            text = f"column {number} has {len(column)} rows, and column 1 {len(columns[0])}"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        pieces += _pieces(column, f"column {number}")
    return _joined(pieces, len(columns[0]))


def _joined(pieces: list[bytes | pa.Array], rows: int) -> pa.BinaryArray:
    """Concatenate the pieces, row by row. A piece that is bytes is the same for every row."""
    merged: list[Any] = []
    for piece in pieces:
        if merged and isinstance(piece, bytes) and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    merged = [pa.scalar(piece, pa.binary()) if isinstance(piece, bytes) else piece for piece in merged]
    if len(merged) == 1 and isinstance(merged[0], pa.Array):
        return merged[0]
    if all(isinstance(piece, pa.Scalar) for piece in merged):
        return pa.repeat(merged[0], rows)
    return pc.binary_join_element_wise(*merged, pa.scalar(b"", pa.binary()))


def _pieces(column: pa.Array, name: str) -> list[bytes | pa.Array]:
    """The pieces, such as a type code and the data, that a column adds to each row's key."""
    kind = column.type
    if pa.types.is_null(kind):
        return [b"\x00"]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _string_pieces(key_format.TEXT, _checked_text(column, name))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _string_pieces(key_format.BYTES, column.cast(pa.binary()))
    if pa.types.is_boolean(kind):
        codes = np.where(_values(column, pa.uint8()), key_format.TRUE, key_format.FALSE)
        return [_fixed(np.empty((len(column), 0), np.uint8), codes, column)]
    if pa.types.is_signed_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return [_integers(_as_integers(column, name), column)]
    if pa.types.is_decimal128(kind):
        low, high = _halves(column)
        short = kind.precision <= 18  # numbers of up to 18 digits always fit in 64 bits
        return [_integers(low.view(np.int64), column) if short else _wide_integers(low, high, column)]
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return [_floats(column)]
    if kind == pa.binary(16):
        return [_identifiers(column)]
    raise MinkaError(Code.INVALID_ARGUMENT, f"{name} is of type {kind}, which no key can have")


def _checked_text(column: pa.Array, name: str) -> pa.Array:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{name}: {error}") from None
    return column.cast(pa.binary())


def _string_pieces(code: int, column: pa.Array) -> list[bytes | pa.Array]:
    if (_data_of(column) == 0).any():
        column = pc.replace_substring(column, pattern=b"\x00", replacement=b"\x00\xff")
    if not column.null_count:
        return [bytes([code]), column, b"\x00"]
    return [pc.fill_null(_joined([bytes([code]), column, b"\x00"], len(column)), b"\x00")]


def _data_of(column: pa.Array) -> _Bytes:
    """The bytes of a binary array's rows, one after the other."""
    if not len(column) or column.buffers()[2] is None:
        return np.empty(0, np.uint8)
    offsets = _offsets_of(column)
    return np.frombuffer(column.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]


def _offsets_of(column: pa.Array) -> npt.NDArray[np.int32]:
    if not len(column):  # its buffer may be empty
        return np.zeros(1, np.int32)
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def _values(column: pa.Array, kind: pa.DataType) -> npt.NDArray[Any]:
    """The array's values as numbers, 0 for null."""
    numbers = column.cast(kind)
    numbers = pc.fill_null(numbers, 0) if column.null_count else numbers
    array: npt.NDArray[Any] = numbers.to_numpy(zero_copy_only=False)
    return array


def _as_integers(column: pa.Array, name: str) -> _Numbers:
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    if pa.types.is_timestamp(column.type):
        try:
            column = column.cast(pa.timestamp("us", column.type.tz))
        except pa.ArrowInvalid as error:
            raise MinkaError(Code.INVALID_ARGUMENT, f"{name}: {error}") from None
    return _values(column, pa.int64())


def _binary(data: _Bytes, lengths: npt.NDArray[np.integer[Any]] | int) -> pa.BinaryArray:
    """A binary array. Element i is the beginning of row i of the matrix, `lengths[i]` bytes long (or `lengths`, if it
    is a number).
    """
    rows, width = data.shape
    offsets = np.zeros(rows + 1, np.int32)
    offsets[1:] = np.cumsum(np.broadcast_to(lengths, rows))
    if offsets[-1] != rows * width:
        data = data[np.arange(width) < np.broadcast_to(lengths, rows)[:, None]]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _fixed(data: _Bytes, codes: npt.NDArray[Any] | int, column: pa.Array) -> pa.BinaryArray:
    """A binary array. Each element is the code and a row of the matrix; for a null it is only the code of null."""
    matrix = np.empty((len(column), data.shape[1] + 1), np.uint8)
    matrix[:, 0] = codes
    matrix[:, 1:] = data
    if not column.null_count:
        return _binary(matrix, matrix.shape[1])
    valid = _valid(column)
    matrix[~valid, 0] = key_format.NULL
    return _binary(matrix, np.where(valid, matrix.shape[1], 1))


def _valid(column: pa.Array) -> _Flags:
    flags: _Flags = column.is_valid().to_numpy(zero_copy_only=False)
    return flags


def _big_endian(words: _Words) -> _Bytes:
    return words.astype(">u8").view(np.uint8).reshape(len(words), 8)


def _sizes(magnitudes: _Words) -> npt.NDArray[np.int64]:
    """How many bytes each number needs; the number 0 needs none."""
    sizes = np.zeros(len(magnitudes), np.int64)
    for least in _LEAST_OF_SIZE:
        more = magnitudes >= least
        if not more.any():
            break
        sizes += more
    return sizes


def _codes(sizes: npt.NDArray[np.int64], negative: _Flags, column: pa.Array) -> npt.NDArray[np.int64]:
    codes = np.where(negative, key_format.ZERO - sizes, key_format.ZERO + sizes)
    codes = codes.clip(key_format.LONG_NEGATIVE, key_format.LONG_POSITIVE)
    if column.null_count:
        codes[~_valid(column)] = key_format.NULL
    return codes


def _integers(values: _Numbers, column: pa.Array) -> pa.BinaryArray:
    negative = values < 0
    # A negative value is encoded as the lowest bytes of value - 1: -5 becomes 0xfa, which is the ones' complement of 5.
    words = values.view(np.uint64) - negative
    sizes = _sizes(np.where(negative, ~words, words))
    matrix = np.empty((len(values), 9), np.uint8)
    matrix[:, 0] = _codes(sizes, negative, column)
    unused = np.minimum(64 - 8 * sizes, 63).astype(np.uint64)
    matrix[:, 1:] = _big_endian(words << unused)
    return _binary(matrix, 1 + sizes)


def _halves(column: pa.Array) -> tuple[_Words, _Words]:
    """The lower and the upper 64 bits of a decimal's unscaled values; a null value is 0."""
    words = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)[column.offset : column.offset + len(column)]
    if column.null_count:
        words = np.where(_valid(column)[:, None], words, np.uint64(0))
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])


def _wide_integers(low: _Words, high: _Words, column: pa.Array) -> pa.BinaryArray:
    """Encode integers of 128 bits as `_integers` encodes those of 64 bits. If an integer needs more than eight bytes, a
    byte after the type code has the length.
    """
    negative = high >= _SIGN
    high = high - (negative & (low == 0))
    low = low - negative
    upper = _sizes(np.where(negative, ~high, high))
    sizes = np.where(upper > 0, 8 + upper, _sizes(np.where(negative, ~low, low)))
    both = np.hstack([_big_endian(high), _big_endian(low)])
    first = np.minimum(16 - sizes[:, None] + np.arange(16), 15)
    left = np.take_along_axis(both, first, axis=1)
    matrix = np.empty((len(low), 18), np.uint8)
    matrix[:, 0] = _codes(sizes, negative, column)
    matrix[:, 1:17] = left
    long = sizes > 8
    matrix[long, 1] = np.where(negative, sizes ^ 0xFF, sizes)[long]
    matrix[long, 2:] = left[long]
    return _binary(matrix, 1 + sizes + long)


def _floats(column: pa.Array) -> pa.BinaryArray:
    single = pa.types.is_float32(column.type)
    values = _values(column, column.type)
    bits: npt.NDArray[Any] = values.view(np.uint32 if single else np.uint64)
    sign: Any = bits.dtype.type(1 << (31 if single else 63))
    bits = np.where(bits >= sign, ~bits, bits | sign)
    data = bits.astype(bits.dtype.newbyteorder(">")).view(np.uint8).reshape(len(values), bits.itemsize)
    code = key_format.SINGLE if single else key_format.DOUBLE
    data[np.isnan(values)] = np.frombuffer(key_format.NAN[code], np.uint8)
    return _fixed(data, code, column)


def _identifiers(column: pa.Array) -> pa.BinaryArray:
    data = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, 16)[column.offset : column.offset + len(column)]
    return _fixed(data, key_format.IDENTIFIER, column)


class _Keys:
    """Reads an array of keys column by column, each column in all keys at once. `at` is the position in each key, and
    `bad` marks the rows that can't be keys with these columns.
    """

    def __init__(self, keys: pa.Array) -> None:
        offsets = _offsets_of(keys).astype(np.int64)
        whole = _data_of(keys)
        # In a damaged key, bytes after its end may be read. They aren't used, since the key's row is marked in `bad`.
        self.data: Final = np.concatenate([whole, np.zeros(_PADDING, np.uint8)])
        self.ends: Final = offsets[1:] - offsets[0]
        self.at = offsets[:-1] - offsets[0]
        self.bad: _Flags = np.zeros(len(keys), np.bool_)
        self._terminators: npt.NDArray[np.int64] | None = None

    def codes(self) -> tuple[_Bytes, _Flags]:
        """The type codes of the next column, and flags for the rows in which this column is null."""
        codes = self.data[self.at]
        self.bad |= self.at >= self.ends
        return codes, codes == key_format.NULL

    def advance(self, lengths: npt.NDArray[Any], *, where: _Flags, refused: _Flags) -> None:
        """Go to the next column: by `lengths` bytes in rows where `where` is true. In other rows the column is null,
        which takes one byte. Rows for which `refused` is true are bad.
        """
        self.at = self.at + np.where(where, lengths, 1)
        self.bad |= refused | (self.at > self.ends)
        self.at = np.minimum(self.at, self.ends)

    def words(self, offset: npt.NDArray[np.int64] | int) -> _Words:
        """The eight bytes that begin `offset` bytes after the beginning of the column."""
        at_each_byte: npt.NDArray[Any] = np.ndarray((len(self.data) - 7,), ">u8", self.data, strides=(1,))
        words: _Words = at_each_byte[self.at + offset].astype(np.uint64)
        return words

    def string_ends(self) -> npt.NDArray[np.int64]:
        """The place of the zero byte that ends the text at the present position: the first zero byte without a 0xff
        after it.

        The search may look into the next key, which can't begin with 0xff, since that isn't a type code.
        """
        if self._terminators is None:
            zeros = np.flatnonzero(self.data[:-_PADDING] == 0)
            self._terminators = np.append(zeros[self.data[zeros + 1] != 0xFF], len(self.data))
        found: npt.NDArray[np.int64] = self._terminators[np.searchsorted(self._terminators, self.at + 1)]
        return found


def decode_keys(keys: pa.Array, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Decode keys into columns of these types, which are types that `key_array` takes. Each column may have nulls.

    Raises MinkaError(INVALID_ARGUMENT) for the first row whose key doesn't have these columns; the error describes the
    mistake.
    """
    keys = keys.cast(pa.binary())
    if keys.null_count:
        row = int(np.flatnonzero(~_valid(keys))[0])
        raise MinkaError(Code.INVALID_ARGUMENT, f"row {row}: the key is null")
    rows = _Keys(keys)
    try:
        columns = [_decoder(kind, f"column {number}")(rows, kind) for number, kind in enumerate(types, 1)]
    except pa.ArrowInvalid as error:
        _refuse_first(keys, np.ones(len(keys), np.bool_), types)
        raise MinkaError(Code.INVALID_ARGUMENT, f"not keys of columns: {error}") from None
    bad = rows.bad | (rows.at != rows.ends)
    if bad.any():
        _refuse_first(keys, bad, types)
    return columns


def _decoder(kind: pa.DataType, name: str) -> Callable[[_Keys, pa.DataType], pa.Array]:
    if pa.types.is_null(kind):
        return _decode_null
    if kind in {pa.string(), pa.large_string(), pa.binary(), pa.large_binary()}:
        return _decode_string
    if pa.types.is_boolean(kind):
        return _decode_bool
    if pa.types.is_signed_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return _decode_integer
    if pa.types.is_decimal128(kind):
        return _decode_decimal
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _decode_float
    if kind == pa.binary(16):
        return _decode_identifier
    raise MinkaError(Code.INVALID_ARGUMENT, f"{name} is of type {kind}, which no key can have")


def _refuse_first(keys: pa.Array, bad: _Flags, types: Sequence[pa.DataType]) -> None:
    """Read each bad row alone, and raise the error of the first row that can't be read."""
    for row in np.flatnonzero(bad):
        key = keys[int(row)].as_py()
        try:
            columns = decode_key(key)
        except MinkaError as error:
            raise MinkaError(Code.INVALID_ARGUMENT, f"row {row}: {error.message}") from None
        if len(columns) != len(types):
            text = f"row {row}: the key has {len(columns)} columns, not {len(types)}"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        for number, (column, kind) in enumerate(zip(columns, types, strict=True), 1):
            single = _Keys(pa.array([encode_key((column,))], pa.binary()))
            _decoder(kind, f"column {number}")(single, kind)
            if single.bad.any():
                text = f"row {row}: column {number} is {type(column).__name__} {column!r:.80}, not {kind}"
                raise MinkaError(Code.INVALID_ARGUMENT, text)


def _decode_null(rows: _Keys, kind: pa.DataType) -> pa.Array:
    _, null = rows.codes()
    rows.advance(np.ones(len(null), np.int64), where=~null, refused=~null)
    return pa.nulls(len(null), kind)


def _decode_string(rows: _Keys, kind: pa.DataType) -> pa.Array:
    text = kind in {pa.string(), pa.large_string()}
    codes, null = rows.codes()
    begins = rows.at + 1
    lengths = rows.string_ends() - rows.at  # bytes of the text and the zero byte
    rows.advance(lengths + 1, where=~null, refused=~null & (codes != (key_format.TEXT if text else key_format.BYTES)))
    lengths = np.where(null | rows.bad, 0, lengths - 1)
    offsets = np.zeros(len(lengths) + 1, np.int32)
    offsets[1:] = np.cumsum(lengths)
    data = rows.data[np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)]
    buffers = [_mask(null), pa.py_buffer(offsets), pa.py_buffer(data)]
    column = pa.Array.from_buffers(pa.binary(), len(lengths), buffers)
    if (data == 0).any():
        column = pc.replace_substring(column, pattern=b"\x00\xff", replacement=b"\x00")
    return column.cast(kind)


def _mask(null: _Flags) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None


def _decode_bool(rows: _Keys, _: pa.DataType) -> pa.Array:
    codes, null = rows.codes()
    true = codes == key_format.TRUE
    rows.advance(np.ones(len(null), np.int64), where=~null, refused=~null & ~true & (codes != key_format.FALSE))
    return pa.array(true, mask=null)


def _decode_integer(rows: _Keys, kind: pa.DataType) -> pa.Array:
    codes, null = rows.codes()
    sizes = np.where(null, 0, codes.astype(np.int64) - key_format.ZERO)
    negative = sizes < 0
    sizes = np.abs(sizes)
    magnitudes = _magnitudes(rows.words(1), np.minimum(sizes, 8), negative)
    whole = pa.types.is_signed_integer(kind) or pa.types.is_date32(kind)
    bits = kind.bit_width if whole else 64
    too_large = magnitudes > np.uint64((1 << bits - 1) - 1) + negative
    rows.advance(1 + sizes, where=~null, refused=(sizes > 8) | (_sizes(magnitudes) != sizes) | too_large)
    values = np.where(negative, ~magnitudes + np.uint64(1), magnitudes).view(np.int64)
    if whole:
        return pa.array(values.astype(f"i{bits // 8}"), mask=null).view(kind)
    return pa.array(values, mask=null).view(pa.timestamp("us", kind.tz)).cast(kind)


def _magnitudes(words: _Words, sizes: npt.NDArray[np.int64], negative: _Flags) -> _Words:
    """The numbers in the first `sizes` bytes (0 to 8) of the words; for a negative number, its absolute value."""
    unused = (64 - 8 * sizes).astype(np.uint64)
    some = unused < 64
    unused = np.minimum(unused, 63)
    values = np.where(some, words >> unused, 0)
    return np.where(negative & some, values ^ (_ALL >> unused), values)


def _decode_decimal(rows: _Keys, kind: pa.DataType) -> pa.Array:
    codes, null = rows.codes()
    head = codes.astype(np.int64)
    long_negative, long_positive = head == key_format.LONG_NEGATIVE, head == key_format.LONG_POSITIVE
    negative = (head < key_format.ZERO) & ~null
    long = (long_negative | long_positive) & ~null
    stated = rows.data[rows.at + 1].astype(np.int64) ^ np.where(long_negative, 0xFF, 0)
    sizes = np.where(null, 0, np.where(long, stated, np.abs(head - key_format.ZERO)))
    upper = np.where(long, sizes - 8, 0)
    refused = ~null & ((sizes > 16) | (long & (upper < 1)) | (~long & (sizes > 8)))
    # A refused row may state any size. The size is limited here, so that the row can be read; the result isn't used.
    upper, lower = upper.clip(0, 8), np.minimum(sizes, 8)
    high = _magnitudes(rows.words(np.where(long, 2, 1)), upper, negative)
    low = _magnitudes(rows.words(np.where(long, 2 + upper, 1)), lower, negative)
    rows.advance(1 + sizes + long, where=~null, refused=refused | (_sizes(high) != upper) | (_sizes(low) > lower))
    rows.bad |= ~null & ~long & (_sizes(low) != sizes)
    rows.bad |= _at_least(high, low, 10**kind.precision)
    return _decimals(
        np.where(negative, ~high + (low == 0), high), np.where(negative, ~low + np.uint64(1), low), null, kind
    )


def _at_least(high: _Words, low: _Words, bound: int) -> _Flags:
    top, rest = np.uint64(bound >> 64), np.uint64(bound & (1 << 64) - 1)
    flags: _Flags = (high > top) | ((high == top) & (low >= rest))
    return flags


def _decimals(high: _Words, low: _Words, null: _Flags, kind: pa.DataType) -> pa.Array:
    words = np.ascontiguousarray(np.stack([low, high], axis=1))
    return pa.Array.from_buffers(kind, len(low), [_mask(null), pa.py_buffer(words)])


def _decode_float(rows: _Keys, kind: pa.DataType) -> pa.Array:
    single = pa.types.is_float32(kind)
    codes, null = rows.codes()
    bits = rows.words(1)
    bits = np.where(bits >= _SIGN, bits ^ _SIGN, ~bits)
    values = (bits >> np.uint64(32)).astype(np.uint32).view(np.float32) if single else bits.view(np.float64)
    code = key_format.SINGLE if single else key_format.DOUBLE
    lengths = np.full(len(null), 5 if single else 9)
    rows.advance(lengths, where=~null, refused=~null & (codes != code))
    return pa.array(values, mask=null)


def _decode_identifier(rows: _Keys, kind: pa.DataType) -> pa.Array:
    codes, null = rows.codes()
    data = rows.data[rows.at[:, None] + np.arange(1, 17)]
    rows.advance(np.full(len(null), 17), where=~null, refused=~null & (codes != key_format.IDENTIFIER))
    return pa.Array.from_buffers(kind, len(null), [_mask(null), pa.py_buffer(np.ascontiguousarray(data))])
