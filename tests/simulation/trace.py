"""The events of a simulated run: the last events as text, and a digest of all events."""

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from minka.v1.raft_pb2 import Entry, Message, MessageType

KEPT_EVENTS: Final = 400

Detail = str | Message


class Violation(Exception):
    """A run has broken an invariant."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.text = text


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run without a violation. Equal runs have equal outcomes."""

    steps: int
    digest: str


class Trace:
    """Adds each event to the digest, and keeps the last events. It formats them only when `tail` is called."""

    def __init__(self, echo: Callable[[str], None] | None = None) -> None:
        self.events = 0
        self._crc = 0
        self._kept: deque[tuple[float, int | str, str, Detail]] = deque(maxlen=KEPT_EVENTS)
        self._echo = echo

    def add(self, now: float, who: int | str, what: str, detail: Detail = "") -> None:
        """Add the event `what` of the node or process `who` at the time `now` (true time, in seconds or ticks)."""
        self.events += 1
        content = detail.encode() if isinstance(detail, str) else detail.SerializeToString(deterministic=True)
        head = b"%s %d %s" % (what.encode(), int(now * 1e6), str(who).encode())
        self._crc = zlib.crc32(content, zlib.crc32(head, self._crc))
        event = (now, who, what, detail)
        self._kept.append(event)
        if self._echo is not None:
            self._echo(_line(event))

    def digest(self) -> str:
        """A digest of all events. Equal runs have equal digests."""
        return f"{self._crc:08x}"

    def tail(self, count: int) -> str:
        """The last events, one per line."""
        return "\n".join(_line(event) for event in list(self._kept)[-count:])


def _line(event: tuple[float, int | str, str, Detail]) -> str:
    now, who, what, detail = event
    text = detail if isinstance(detail, str) else describe(detail)
    return f"{now:10.4f}  {who!s:>8}  {what:<12} {text}"


def describe(m: Message) -> str:
    """Describe a message in one line."""
    parts = [f"{m.from_id}→{m.to} {MessageType.Name(m.type).removeprefix('MSG_')} term {m.term}"]
    if m.index or m.log_term:
        parts.append(f"at {m.index}/{m.log_term}")
    if m.entries:
        parts.append(f"entries [{' '.join(map(_entry, m.entries))}]")
    if m.commit:
        parts.append(f"commit {m.commit}")
    if m.reject:
        parts.append(f"reject, hint {m.reject_hint}")
    if m.HasField("snapshot"):
        meta = m.snapshot.metadata
        parts.append(f"snapshot {meta.index}/{meta.term} voters {list(meta.conf_state.voters)}")
    return " ".join(parts)


def _entry(entry: Entry) -> str:
    data = entry.data[:12].decode("ascii", "replace") if entry.data.isascii() else f"{len(entry.data)} B"
    return f"{entry.index}/{entry.term}{':' + data if data else ''}"
