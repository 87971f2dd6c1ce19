"""The memory for clients' requests and the answers to them."""

import time
from typing import Final

from minkad.process import descriptors
from minkad.process.memory import Memory, malloc_trim
from minkad.process.telemetry import Telemetry

_STREAMS_PART: Final = 0.625
_FEEDS_PART: Final = 0.125


class ClientsMemory:
    """The memory of clients' streams, of their calls, and of the readers of whole keyspaces (snapshots, changes).
    Answers to calls can't be taken back, so their memory is separate from that of keys and values.
    """

    def __init__(self, size: int, telemetry: Telemetry) -> None:
        """`size` in bytes."""
        self._size = size
        most = descriptors.for_clients(descriptors.raise_limit())
        self.streams: Final = Memory(int(size * _STREAMS_PART), time.monotonic, malloc_trim, most)
        self.feeds: Final = Memory(int(size * _FEEDS_PART), time.monotonic, malloc_trim)
        self.calls: Final = Memory(size - self.streams.limit - self.feeds.limit, time.monotonic)
        self._all = (self.streams, self.calls, self.feeds)
        telemetry.clients_memory = self.used
        telemetry.clients_ended = lambda: sum(one.ended for one in self._all)

    def used(self) -> int:
        """The bytes that clients hold."""
        return sum(one.used for one in self._all)

    def is_flooded(self) -> bool:
        """True if clients hold more than a quarter of this memory."""
        return self.used() * 4 > self._size
