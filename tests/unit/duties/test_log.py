"""A separate thread writes the log lines of the sessions' thread, so slow log handlers can't block sessions."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest

from minka.duties import Delegate, Duty, Shard
from minka.duties._log import EXIT_STATUS, MAX_WAITING, Log
from minka.duties._session import shards_loop

DEADLINE = 10.0


class Blocking(logging.Handler):
    """A handler that blocks until a test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on, self.done = threading.Event(), threading.Event(), threading.Event()
        self.written: list[str] = []
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.reached.set()
        self.go_on.wait(DEADLINE)
        self.written.append(record.getMessage())
        if self.written[-1] == self.last:
            self.done.set()


@pytest.fixture
def stuck() -> Iterator[Blocking]:
    """A handler that blocks the log of shards during the test."""
    handler, log = Blocking(), logging.getLogger("minka.duties")
    log.addHandler(handler)
    try:
        yield handler
    finally:
        handler.go_on.set()
        log.removeHandler(handler)


def test_a_stuck_log_keeps_some_messages_and_counts_the_rest(stuck: Blocking) -> None:
    log = Log()
    log.say(logging.ERROR, "first")
    assert stuck.reached.wait(DEADLINE)
    for number in range(MAX_WAITING + 3):
        log.say(logging.ERROR, str(number))
    stuck.last = str(MAX_WAITING - 1)
    stuck.go_on.set()
    assert stuck.done.wait(DEADLINE)
    stuck.done.clear()
    stuck.last = "again"
    log.say(logging.ERROR, "again")
    assert stuck.done.wait(DEADLINE)
    assert stuck.written == [
        "first",
        *map(str, range(MAX_WAITING)),
        "3 messages were dropped: the log is stuck",
        "again",
    ]


def test_a_handler_that_raises_does_not_end_the_log(stuck: Blocking) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        if record.getMessage() == "bad":
            raise ValueError("no such message")
        return True

    stuck.addFilter(refuse)
    stuck.go_on.set()
    stuck.last = "good"
    log = Log()
    log.say(logging.ERROR, "bad")
    log.say(logging.ERROR, "good")
    assert stuck.done.wait(DEADLINE)


class Fetcher(Delegate):
    async def attach(self, duties: Sequence[Duty]) -> None: ...

    async def detach(self, duties: Sequence[Duty]) -> None: ...


async def test_a_blocked_handler_does_not_delay_sessions(stuck: Blocking) -> None:
    shard = Shard(Fetcher(), {"feeds": None}, ["127.0.0.1:1"])
    running = asyncio.create_task(shard.run())
    assert await asyncio.to_thread(stuck.reached.wait, DEADLINE), "no word about a missing node"
    async with asyncio.timeout(DEADLINE / 2):
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), shards_loop()))
    shard.stop()
    await asyncio.wait_for(running, DEADLINE)


PREPARED = {
    "closed": "sys.stderr.close()",
    "none": "sys.stderr = None",
    "without a reader": "sys.stdin.read()",  # waits until the test has closed its end of the pipe
    "full": """
os.set_blocking(2, False)
with contextlib.suppress(BlockingIOError):
    while True:
        os.write(2, b"x")
os.set_blocking(2, True)
""",
}


@pytest.mark.parametrize("stderr", PREPARED)
def test_the_process_ends_whatever_the_state_of_stderr(stderr: str) -> None:
    code = f"import contextlib, os, sys\nfrom minka.duties._log import end_process\n{PREPARED[stderr]}\n"
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}end_process('s', 'stuck')"], stdin=subprocess.PIPE, stderr=writer
    )
    os.close(writer)
    try:
        if stderr == "without a reader":
            os.close(reader)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(DEADLINE) == EXIT_STATUS
    finally:
        process.kill()
        process.wait()
        if stderr != "without a reader":
            os.close(reader)


def test_the_last_message_gives_the_reason() -> None:
    code = "from minka.duties._log import end_process; end_process('s', 'stuck')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (ended.returncode, ended.stderr) == (EXIT_STATUS, "minka: shard s ends: stuck\n")


def test_waiting_messages_are_written_when_the_interpreter_ends() -> None:
    code = "import logging; from minka.duties._log import Log; log = Log(); [log.say(40, str(n)) for n in range(200)]"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert ended.stderr.splitlines() == list(map(str, range(200)))
