"""The number of committed commands that are applied before other tasks of the loop get a turn."""

from collections.abc import Callable
from typing import Final

PIECE_BYTES: Final = 24 * 1024  # a piece has at least this many bytes of commands,
PIECE_S: Final = 0.002  # and takes at least this long
PAUSE_S: Final = 0.002  # after such a pause a new piece begins
LEAST_BYTES: Final = 2 * 1024  # a command counts as at least this much: a short command can cause much work


class Piece:
    """The commands that are applied now."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        """`seconds`: see `PIECE_S`; with 0, as in the simulation, only the bytes count."""
        self._clock = clock
        self._seconds = seconds
        self._bytes = 0  # of the commands since the piece began, or since its time was last checked
        self._began = self._paused_at = clock()

    def add(self, command: bytes) -> None:
        """A command was applied."""
        self._bytes += max(len(command), LEAST_BYTES)

    def is_over(self) -> bool:
        """True if other tasks get a turn before the next command."""
        if self._bytes < PIECE_BYTES:
            return False
        self._bytes = 0
        return self._clock() - self._began >= self._seconds

    def begin(self) -> None:
        """Other tasks had their turn."""
        self._bytes, self._began = 0, self._clock()

    def pause(self) -> None:
        """There is nothing to apply for now."""
        self._paused_at = self._clock()

    def go_on(self) -> None:
        """There is a command to apply again."""
        if self._clock() - self._paused_at >= PAUSE_S:
            self.begin()
