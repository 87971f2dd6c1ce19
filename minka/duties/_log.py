"""The log of the thread that runs the sessions. Log handlers and readers of stderr belong to the user's program, and
may block for ever. The thread of the sessions must not block, since it watches the clearance; so other threads write
the messages for it.
"""

import atexit
import contextlib
import logging
import os
import queue
import sys
import threading
from typing import Final, NoReturn

log: Final = logging.getLogger("minka.duties")

EXIT_STATUS: Final = 70  # EX_SOFTWARE: the delegate did not release its duties in time
MAX_WAITING: Final = 1_000  # the most messages that wait to be written; further messages are dropped and counted
_LAST_WORDS_S: Final = 0.5  # the most seconds that the end of the process waits for messages to be written


class Log:
    """Writes messages to the log on a thread of its own. `say` never waits."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[int, str] | None] = queue.Queue(MAX_WAITING)
        self._dropped = 0
        self._thread: Final = threading.Thread(target=self._write, name="minka shard log", daemon=True)
        self._thread.start()
        atexit.register(self._end, os.getpid())

    def say(self, level: int, text: str) -> None:
        """Queue a message to be written. If too many messages wait already, this one is dropped and counted. Only one
        thread may call this.
        """
        try:
            if self._dropped:
                self._waiting.put_nowait((logging.WARNING, f"{self._dropped} messages were dropped: the log is stuck"))
                self._dropped = 0
            self._waiting.put_nowait((level, text))
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        while (message := self._waiting.get()) is not None:
            with contextlib.suppress(Exception):  # if the program's handler or filter raises, the next message follows
                log.log(message[0], "%s", message[1])

    def _end(self, process: int) -> None:
        """When the interpreter ends, wait a moment so that the thread can write the messages. A forked child has no
        such thread, so it doesn't wait.
        """
        if process != os.getpid():
            return
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
            self._thread.join(_LAST_WORDS_S)


def end_process(shard: str, reason: str) -> NoReturn:
    """Write the reason to stderr, and end the process: other shards may already do this shard's work. A stderr that
    nobody reads delays the end by at most half a second.
    """
    try:
        words = f"minka: shard {shard} ends: {reason}"
        writer = threading.Thread(target=_print, args=(words,), name="minka last words", daemon=True)
        writer.start()
        writer.join(_LAST_WORDS_S)
    finally:
        os._exit(EXIT_STATUS)


def _print(words: str) -> None:
    with contextlib.suppress(Exception):  # stderr may be closed, or its reader gone
        print(words, file=sys.stderr, flush=True)  # noqa: T201
