"""Input of a Redis client's connection that has not begun."""

from collections import deque
from typing import Final

from minkad.data_port.resp.command import Words
from minkad.data_port.resp.parsing import Parser
from minkad.data_port.resp.replies import RespError

_PIECE_BYTES: Final = 64 * 1024
_LINES_BYTES: Final = 8 * 1024  # of inline commands, which take ten times as long to parse
_COMMAND_BYTES: Final = 200  # memory of a command besides its own bytes, about


class Intake:
    """Input is cut into commands in pieces, each when all earlier ones have begun: bytes take less memory than
    words.
    """

    def __init__(self) -> None:
        self.commands: list[Words] = []  # those before `at` have begun
        self.at = 0
        self.unanswered = 0  # bytes of commands that were cut out, until all are answered
        self._parser = Parser()
        self._uncut: deque[bytes] = deque()
        self._uncut_bytes = 0
        self._start = 0  # of the uncut input, in the first piece

    def add(self, data: bytes) -> None:
        """Bytes have come."""
        self._uncut.append(data)
        self._uncut_bytes += len(data)

    def cut(self) -> bool:
        """Cut out the next commands, in place of the old ones. Returns True if there was anything to cut."""
        self.commands, self.at = [], 0
        if not self._uncut:
            return False
        first, start = self._uncut[0], self._start
        are_arrays = self._parser.partial or first[start] == ord("*")
        end = start + (_PIECE_BYTES if are_arrays else _LINES_BYTES)
        data = first if not start and len(first) <= end else first[start:end]
        self._start = end
        if end >= len(first):
            self._uncut.popleft()
            self._start = 0
        self._uncut_bytes -= len(data)
        before = self._begun
        self.commands = self._parser.feed(data)
        if self.commands:
            self.unanswered += max(0, before + len(data) - self._begun) + _COMMAND_BYTES * len(self.commands)
        if self._parser.error is not None:
            self._uncut.clear()
            self._uncut_bytes = 0
            self._start = 0
        return True

    @property
    def error(self) -> RespError | None:
        """The error that ends the connection, after the commands before it."""
        return self._parser.error

    @property
    def has_more(self) -> bool:
        """True if anything has not begun."""
        return self.at < len(self.commands) or len(self._uncut) > 0

    @property
    def is_inside(self) -> bool:
        """True if a part of a command is here, which takes some memory until the rest has come."""
        return self._parser.weight > _PIECE_BYTES

    @property
    def unread(self) -> int:
        """Bytes that have come and are not answered, if they are whole commands."""
        return self.unanswered + self._uncut_bytes

    @property
    def weight(self) -> int:
        """The memory of all of it, in bytes."""
        return self.unanswered + self._uncut_bytes + self._begun

    @property
    def _begun(self) -> int:
        """The memory of the incomplete command."""
        return self._parser.weight + self._parser.held

    def forget(self) -> None:
        """Nothing of it begins from now on."""
        self.commands, self.at = [], 0
        self._uncut.clear()
        self._uncut_bytes = 0
