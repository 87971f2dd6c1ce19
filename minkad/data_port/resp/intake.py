"""Input of a Redis client's connection that has not begun."""

from collections import deque
from typing import Final

from minkad.data_port.resp.command import Words
from minkad.data_port.resp.parsing import Parser
from minkad.data_port.resp.replies import RespError

_PIECE_BYTES: Final = 64 * 1024
_LINES_BYTES: Final = 8 * 1024  # a piece of inline commands; their parsing takes ten times as long
_COMMAND_BYTES: Final = 200  # about the memory of a command, besides its own bytes


class Intake:
    """Cuts input into commands, piece by piece. Cuts a piece only when all earlier commands have begun, since bytes
    take less memory than words.
    """

    def __init__(self) -> None:
        self.commands: list[Words] = []  # those before `at` have begun
        self.at = 0
        self.unanswered = 0  # memory of the commands cut since everything was answered last
        self._parser = Parser()  # has the beginning of an incomplete command
        self._uncut: deque[bytes] = deque()  # input as it has come
        self._uncut_bytes = 0
        self._start = 0  # the uncut input begins here in the first of `_uncut`

    def add(self, data: bytes) -> None:
        """Bytes have come."""
        self._uncut.append(data)
        self._uncut_bytes += len(data)

    def cut(self) -> bool:
        """Replace `commands`, which have all begun, with the next commands. Returns True if there was input to cut."""
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
        """The error that ends the connection, after all commands before the error."""
        return self._parser.error

    @property
    def has_more(self) -> bool:
        """True if commands, or uncut input, have not begun."""
        return self.at < len(self.commands) or len(self._uncut) > 0

    @property
    def is_inside(self) -> bool:
        """True if a large part of a command is here, and waits for the rest."""
        return self._parser.weight > _PIECE_BYTES

    @property
    def unread(self) -> int:
        """The memory of input that isn't answered, without the incomplete command in the parser."""
        return self.unanswered + self._uncut_bytes

    @property
    def weight(self) -> int:
        """The memory of all input here, in bytes."""
        return self.unanswered + self._uncut_bytes + self._begun

    @property
    def _begun(self) -> int:
        """The memory of the incomplete command."""
        return self._parser.weight + self._parser.held

    def forget(self) -> None:
        """Drop all input: nothing more begins."""
        self.commands, self.at = [], 0
        self._uncut.clear()
        self._uncut_bytes = 0
