"""Cuts the input of a connection into commands with hiredis, within limits that hiredis doesn't know."""

import re
from typing import Final, cast

import hiredis

from minka.wire.kv_frames import MAX_VALUE_BYTES
from minkad.data_port.resp.replies import RespError

Command = list[bytes]

MAX_COMMAND_BYTES: Final = 2 * MAX_VALUE_BYTES
MAX_INLINE_BYTES: Final = 64 * 1024

# hiredis allocates as many items as an array's header says, so the parser first checks text that looks like a large
# header, which may be a part of a value. Incomplete text of this kind at the end of input waits for the rest.
_LARGE_AT_START: Final = re.compile(rb"\n?[*~>%|][0-9]{4}")
_LARGE_LATER: Final = re.compile(rb"\r\n[*~>%|][0-9]{4}")  # begins with certain bytes, so the search is faster
_LARGE_BYTES: Final = 5  # of such text
_TOO_LARGE: Final = re.compile(rb"\*[0-9]{7}")
_CUT_OFF: Final = re.compile(rb"[*~>%|][0-9]{0,6}\Z")
_CUT_OFF_BYTES: Final = 7
_PIECE_BYTES: Final = 1024
_TRIES: Final = 16  # ends of lines at which an array may end
_TAIL_BYTES: Final = 64
_WORD_BYTES: Final = 50  # memory of a word's object
_WORD_MOST: Final = 8  # most memory of such objects for each byte of input


class Parser:
    """Takes bytes, returns commands. After an error it takes nothing more."""

    def __init__(self) -> None:
        self.error: RespError | None = None  # the error that ends the connection, after the commands before the error
        self.partial = 0  # bytes of the incomplete command in hiredis
        self.weight = 0  # memory of this command: short words take several times their bytes
        self._reader = hiredis.Reader()
        self._held = b""  # the beginning of a header, or of an inline command
        self._is_inside = False  # hiredis's input ends inside of a command
        self._tail = b""  # the last bytes of hiredis's input, if it ends inside of a command

    @property
    def held(self) -> int:
        """Bytes of an incomplete line."""
        return len(self._held)

    def feed(self, data: bytes) -> list[Command]:
        """The commands that are now complete; each has at least a name."""
        if self._held:
            data, self._held = self._held + data, b""
        commands: list[Command] = []
        try:
            if not self._is_inside and data[:1] != b"*":
                data = self._take_inline(data, commands)
            if data[-1:] != b"\n":
                data = self._hold_cut_off(data)
            large = _LARGE_AT_START.match(data) or _LARGE_LATER.search(data)
            at = self._take(data, commands) if large is None else self._take_with_large(data, large, commands)
            if at >= 0:
                self._begin_lines(data[at:], commands)
        except hiredis.HiredisError as error:
            self.error = RespError(f"ERR Protocol error: {error}")
        except RespError as error:
            self.error = error
        except TypeError:  # an array as a key of a map, which hiredis makes a dict
            self.error = _not_a_command()
        return commands

    def _hold_cut_off(self, data: bytes) -> bytes:
        cut = _CUT_OFF.search(data, max(0, len(data) - _CUT_OFF_BYTES))
        if cut is not None:
            data, self._held = data[: cut.start()], cut[0]
        return data

    def _begin_lines(self, data: bytes, commands: list[Command]) -> None:
        """Take input that begins with inline commands after arrays. In pieces, since each change from arrays to inline
        commands costs as much time as the rest of the input.
        """
        data, self._held = data + self._held, b""
        self._reader, self._is_inside, self.partial, self.weight = hiredis.Reader(), False, 0, 0
        if len(data) <= _PIECE_BYTES:
            commands += self.feed(data)
            return
        for start in range(0, len(data), _PIECE_BYTES):
            if self.error is None:
                commands += self.feed(data[start : start + _PIECE_BYTES])

    def _take_with_large(self, data: bytes, large: re.Match[bytes] | None, commands: list[Command]) -> int:
        """Do the work of `_take` for input with text like a large header."""
        done = 0
        while large is not None:
            start = large.end() - _LARGE_BYTES
            at = self._take(data[done:start], commands)
            if at >= 0:
                return done + at
            done = start
            if not self._is_inside and not data.startswith(b"*", done):
                return done
            if not self._reader.has_data():  # so this is a header, not a part of a value
                if self._is_inside:
                    raise _not_a_command()
                if _TOO_LARGE.match(data, done):
                    raise RespError("ERR Protocol error: invalid multibulk length")
            large = _LARGE_LATER.search(data, done)
        at = self._take(data[done:], commands)
        return done + at if at >= 0 else at

    def _take(self, data: bytes, commands: list[Command]) -> int:
        """Take arrays. Returns the place after them where an inline command begins; -1 if there isn't any."""
        if not data:
            return -1
        reader, gets = self._reader, self._reader.gets
        reader.feed(data)
        first = len(commands)
        empties: list[tuple[int, bytes]] | None = None  # skipped arrays, with the next command's place
        # Inside of a command, hiredis needs CR LF to go on, and would search for it from the line's beginning.
        ends_line = (b"\n" in data and b"\r\n" in data) or (data[:1] == b"\n" and self._tail[-1:] == b"\r")
        is_waiting = self._is_inside and not ends_line
        try:
            command = False if is_waiting else gets()
            while command is not False:
                if type(command) is list and command:
                    commands.append(_checked(command))
                elif command is None or command == []:
                    if empties is None:
                        empties = []
                    empties.append((len(commands), b"*-1\r\n" if command is None else b"*0\r\n"))
                else:
                    raise _not_a_command()
                if not reader.has_data():
                    self._is_inside, self.partial, self.weight = False, 0, 0
                    return -1
                command = gets()
        except hiredis.HiredisError:
            at = _end_of_arrays(data, _encoded(commands, first, empties or []), self._tail if self._is_inside else b"")
            if at < 0:
                raise
            return at
        is_all = len(data) >= _TAIL_BYTES or not self._is_inside
        self._tail = data[-_TAIL_BYTES:] if is_all else (self._tail + data)[-_TAIL_BYTES:]
        self._is_inside = True
        if len(commands) > first or empties is not None:
            self.partial = self.weight = 0
        else:
            self.partial += len(data)
            self.weight += len(data) + min(_WORD_BYTES * data.count(b"\n$"), _WORD_MOST * len(data))
        if self.partial > MAX_COMMAND_BYTES:
            raise RespError("ERR Protocol error: invalid bulk length")
        return -1

    def _take_inline(self, data: bytes, commands: list[Command]) -> bytes:
        """Take the lines at the beginning. Returns the rest, which is empty or begins with an array."""
        start = 0
        while start < len(data) and data[start] != ord("*"):
            end = data.find(b"\n", start)
            if end < 0:
                self._held = data[start:]
                if len(self._held) > MAX_INLINE_BYTES:
                    raise RespError("ERR Protocol error: too big inline request")
                return b""
            if words := split_line(data[start:end]):
                commands.append(words)
            start = end + 1
        return data[start:]


def _encoded(commands: list[Command], first: int, empties: list[tuple[int, bytes]]) -> list[bytes]:
    """The arrays from `first` on, with the empty arrays, as they came: hiredis accepts only one form of lengths."""
    found: list[bytes] = []
    for before, empty in [*empties, (len(commands), b"")]:
        found += [_array(words) for words in commands[first:before]]
        found.append(empty)
        first = before
    return found


def _array(words: Command) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _end_of_arrays(data: bytes, arrays: list[bytes], tail: bytes) -> int:
    """The place in `data` where these arrays end, and input begins that hiredis doesn't take. If the first array began
    before `data`, `tail` is the end of the earlier input. -1 if an array follows (hiredis has found an error in it), or
    if the place isn't certain.
    """
    others = b"".join(arrays[1:])
    ends = _ends(data, arrays[0], tail) if tail else [len(arrays[0])]
    places = [end + len(others) for end in ends if data.startswith(others, end)]
    return places[0] if len(places) == 1 and not data.startswith(b"*", places[0]) else -1


def _ends(data: bytes, array: bytes, tail: bytes) -> list[int]:
    """The places where an array that began before `data` may end: several only if its bytes repeat. Empty if there are
    too many places to check.
    """
    ends, end = list[int](), 0
    for _ in range(_TRIES):
        end = data.find(b"\n", end) + 1
        if not 0 < end < len(array):
            return ends
        before = array[max(0, len(array) - end - len(tail)) : -end]
        if array.endswith(data[:end]) and tail.endswith(before):
            ends.append(end)
    return []


def _checked(words: list[object]) -> Command:
    """Raises RespError if a word isn't a string."""
    for word in words:
        if word is None:
            raise RespError("ERR Protocol error: invalid bulk length")
        if type(word) is not bytes:
            raise _not_a_command()
    return cast("Command", words)


def _not_a_command() -> RespError:
    return RespError("ERR Protocol error: expected '*' and then '$'")


_BLANK: Final = rb"[\t\r\n\x0b\f ]"
_WORD: Final = re.compile(
    _BLANK + rb"""*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\t\r\n\x0b\f\0 "']+))(?=""" + _BLANK + rb"|\Z)",
    re.DOTALL,
)
_UP_TO_BYTE_0: Final = re.compile(rb"""(?:[^\0"']++|"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')*+\0""", re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_NAMED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split_line(line: bytes) -> Command:
    """The words of a line, with quotes as in redis-cli. Raises RespError."""
    words: Command = []
    at, line = 0, line.rstrip()
    while at < len(line):
        found = _WORD.match(line, at)
        if found is None:
            raise _not_a_word(line[at:])
        double, single, plain = found.groups()
        if double is not None:
            words.append(_ESCAPE.sub(_unescaped, double))
        else:
            words.append(single.replace(rb"\'", b"'") if single is not None else plain)
        at = found.end()
    return words


def _not_a_word(rest: bytes) -> RespError:
    """The error for the rest of a line, which doesn't begin with a word."""
    if _UP_TO_BYTE_0.match(rest) is not None:
        return RespError("ERR Protocol error: an inline command has a byte 0 outside of quotes")
    return RespError("ERR Protocol error: unbalanced quotes in request")


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = found[1]
    return bytes([int(code[1:], 16)]) if len(code) == 3 else _NAMED.get(code, code)
