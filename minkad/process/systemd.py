"""The daemon's messages to systemd: the notification protocol of sd_notify(3), and the watchdog of
sd_watchdog_enabled(3).

Everything here does nothing unless systemd started the process as a `Type=notify` service.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

_SEND_TIMEOUT_SECONDS = 0.5


def notify(*assignments: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send assignments such as "READY=1" in one datagram. True if systemd asked for them and got them.

    A failure is logged, not raised: the daemon's work doesn't depend on its supervisor.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    # A leading @ stands for the NUL byte of an abstract socket's name.
    target = f"\0{address[1:]}" if address.startswith("@") else address
    payload = "\n".join(text.replace("\n", " ") for text in assignments).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(_SEND_TIMEOUT_SECONDS)
            sock.sendto(payload, target)
    except OSError as error:
        log.warning("systemd could not be notified", extra={"socket": address, "error": error})
        return False
    return True


def ready(status: str) -> bool:
    """Tell systemd that the start, or a reload, is done."""
    return notify("READY=1", f"STATUS={status}")


def status(text: str) -> bool:
    """One line for `systemctl status`."""
    return notify(f"STATUS={text}")


def reloading() -> bool:
    """Tell systemd that a reload begins; `ready` ends it."""
    return notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=Reloading")


def stopping(text: str) -> bool:
    """Tell systemd that the daemon stops, whether or not somebody has asked for this."""
    return notify("STOPPING=1", f"STATUS={text}")


def watchdog_interval(environ: Mapping[str, str] = os.environ) -> float | None:
    """Seconds between keep-alives: half of the time that systemd allows. None if systemd doesn't watch this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    allowed = environ.get("WATCHDOG_USEC", "")
    return int(allowed) / 2_000_000 if allowed.isdecimal() and int(allowed) > 0 else None


async def watchdog(alive: Callable[[], bool], interval: float | None = None) -> None:
    """Send keep-alives while `alive()`, until cancelled; returns at once if systemd doesn't watch.

    It runs on the daemon's loop, so systemd restarts a process whose loop hangs.
    """
    interval = watchdog_interval() if interval is None else interval
    if interval is None:
        return
    while True:
        if alive():
            notify("WATCHDOG=1")
        await asyncio.sleep(interval)
