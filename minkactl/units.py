"""Numbers as a person reads them."""

from datetime import UTC, datetime


def size(count: float) -> str:
    """A number of bytes: 512 B, 12.4 MiB."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1000:
            return f"{count:.3g} {unit}" if count < 100 else f"{count:.0f} {unit}"
    return f"{count / 1024:.3g} PiB"


def rate(bytes_per_second: float) -> str:
    """A speed: 31.2 MiB/s."""
    return f"{size(bytes_per_second)}/s"


def number(count: int) -> str:
    """A number such as 336,776."""
    return f"{count:,}"


def counted(count: int, noun: str, many: str = "") -> str:
    """A number with its noun: 1 move, 7 moves; 1 duty, 7 duties."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {many or noun + 's'}"


def duration(seconds: float) -> str:
    """A length of time: 12 ms, 1.3 s, 2 min 03 s, 4 h 05 min, 3 d 4 h."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def timestamp(unix_ms: int) -> str:
    """Unix milliseconds as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(unix_ms: int) -> str:
    """Unix milliseconds as the local date and time, for people: 2026-11-21 11:13:36."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
