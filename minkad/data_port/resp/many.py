"""Commands with very many keys: done piece by piece, with other work in between.

Meanwhile, the command's connection begins no other command.
"""

from collections.abc import Callable
from typing import Final

from minka.wire.kv_frames import MAX_ANSWER_BYTES
from minkad.data_port.resp.command import Words, upper
from minkad.data_port.resp.connection import RespConnection
from minkad.data_port.resp.refusals import check_keys
from minkad.data_port.resp.replies import OK, RespError, answer_too_large, integer, internal
from minkad.data_port.resp.slots import Owner, Slot

PIECE_WORDS: Final = 1000
"""Words in a piece; a command with at most this many words is done at once."""

_CHECKED_WORDS: Final = 4000

Run = Callable[[RespConnection, Words, Owner | None], bytes | Slot]
"""Carries out a piece as if the piece were the command. The answer goes to the owner, if any, not to the connection."""
Finish = Callable[[list[bytes]], bytes]


def by_pieces(run: Run, finish: Finish, *, is_write: bool) -> Callable[[RespConnection, Words], bytes | Slot]:
    """Make a command for any number of keys: `run` does a piece, `finish` makes the answer from those of the pieces."""

    def command(connection: RespConnection, words: Words) -> bytes | Slot:
        if len(words) <= PIECE_WORDS:
            return run(connection, words, None)
        many = Many(connection, words, run, finish, is_write=is_write)
        connection.is_busy = True
        connection.service.in_turn(connection, many.check)
        return many

    return command


class Many(Slot):
    """One command under way. It owns the answers of its pieces."""

    def __init__(self, connection: RespConnection, words: Words, run: Run, finish: Finish, *, is_write: bool) -> None:
        super().__init__(connection, is_write=is_write)
        self.reads = self.writes = 0  # see Owner
        self._connection = connection
        self._words = words
        self._run = run
        self._finish = finish
        self._step = connection.service.names[upper(words[0])].step
        self._at = 1  # the place of the next word to check, and later of the next word to carry out
        self._answers: list[bytes] = []  # of the pieces that are done
        self._kept = 0  # bytes of these answers

    def check(self) -> None:
        """Check some of the keys, before anything is done."""
        end = self._at + _CHECKED_WORDS
        try:
            check_keys([self._words[1], *self._words[self._at : end : self._step]], self._connection.view)
        except RespError as error:
            self._end(error.encoded)
            return
        self._at = end if end < len(self._words) else 1
        self._go_on(self.check if self._at > 1 else self._next)

    def _next(self) -> None:
        connection, start, end = self._connection, self._at, self._at + PIECE_WORDS
        if connection.service.connections.get(connection.id) is not connection:
            self._end(b"")
            return
        piece = self._words[start:end]
        self._words[start:end] = [b""] * len(piece)  # frees these words now, and not all words at the end
        self._at = end
        try:
            answer = self._run(connection, [self._words[0], *piece], self)
        except RespError as error:
            answer = error.encoded
        except Exception as error:  # noqa: BLE001 - a bug ends nothing else
            answer = internal(error).encoded
        if isinstance(answer, bytes):
            self._came(answer)

    def filled(self, slot: Slot) -> None:
        """A piece is answered."""
        self._came(slot.answer or b"")

    def _came(self, answer: bytes) -> None:
        if answer.startswith(b"-"):
            is_in_part = self.is_write and len(self._answers) > 0
            # After MOVED or TRYAGAIN, a client would repeat the command, and get an answer that lacks the done keys.
            self._end(b"-ERR some of the keys are done, and not all: " + answer[1:] if is_in_part else answer)
            return
        self._answers.append(answer)
        self._kept += len(answer)
        self._connection.share.take_until_answered(len(answer))
        if self._kept > MAX_ANSWER_BYTES:
            self._end(answer_too_large().encoded)
        elif self._at < len(self._words):
            self._go_on(self._next)
        else:
            self._end(self._made())

    def _go_on(self, piece: Callable[[], None]) -> None:
        self._connection.service.in_turn(self._connection, piece)

    def _made(self) -> bytes:
        try:
            return self._finish(self._answers)
        except Exception as error:  # noqa: BLE001 - a bug ends nothing else
            return internal(error).encoded

    def _end(self, answer: bytes) -> None:
        self._connection.share.take_until_answered(-self._kept)
        self._connection.is_busy = False
        self._answers, self._words = [], []
        self.fill(answer)


def added(answers: list[bytes]) -> bytes:
    """The sum of the numbers."""
    return integer(sum(int(answer[1:]) for answer in answers))


def together(answers: list[bytes]) -> bytes:
    """One array with all values."""
    counts = [int(answer[1 : answer.index(b"\r")]) for answer in answers]
    return b"*%d\r\n" % sum(counts) + b"".join([answer[answer.index(b"\n") + 1 :] for answer in answers])


def all_done(_: list[bytes]) -> bytes:
    """OK, if the answers of the pieces have nothing more to say."""
    return OK
