"""Notifications to systemd, received by a real datagram socket."""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from minkad.process import systemd


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket that systemd would listen on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield sock


def test_without_systemd_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not systemd.notify("READY=1")


def test_ready_carries_a_status_in_the_same_datagram(supervisor: socket.socket) -> None:
    assert systemd.ready("Serving\n3 partitions")
    assert supervisor.recv(4096) == b"READY=1\nSTATUS=Serving 3 partitions"


def test_the_notification_of_a_reload_has_its_time(supervisor: socket.socket) -> None:
    before = time.monotonic_ns() // 1000
    assert systemd.reloading()
    first, second, _ = supervisor.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    name, _, value = second.partition("=")
    assert name == "MONOTONIC_USEC"
    assert before <= int(value) <= time.monotonic_ns() // 1000


def test_stopping_and_status(supervisor: socket.socket) -> None:
    systemd.stopping("Draining")
    systemd.status("Half way")
    assert supervisor.recv(4096) == b"STOPPING=1\nSTATUS=Draining"
    assert supervisor.recv(4096) == b"STATUS=Half way"


def test_notifications_go_to_an_abstract_socket() -> None:
    name = f"minka-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(5)
        assert systemd.notify("READY=1", environ={"NOTIFY_SOCKET": f"@{name}"})
        assert sock.recv(4096) == b"READY=1"


def test_a_missing_supervisor_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not systemd.notify("READY=1", environ={"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert "could not be notified" in caplog.text


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "10000000"}, 5.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}, 5.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_fed_twice_in_its_timeout(environ: dict[str, str], expected: float | None) -> None:
    assert systemd.watchdog_interval(environ) == expected


async def test_the_watchdog_is_fed_only_while_the_node_is_alive(supervisor: socket.socket) -> None:
    answers = [True, False, True]
    supervisor.setblocking(False)
    done = asyncio.Event()

    def alive() -> bool:
        if len(answers) == 1:
            done.set()
        return answers.pop(0) if answers else False

    task = asyncio.create_task(systemd.watchdog(alive, 0.001))
    await asyncio.wait_for(done.wait(), 5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [supervisor.recv(64), supervisor.recv(64)] == [b"WATCHDOG=1", b"WATCHDOG=1"]
    with pytest.raises(BlockingIOError):
        supervisor.recv(64)


async def test_an_unwatched_daemon_has_no_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    await systemd.watchdog(lambda: True)
