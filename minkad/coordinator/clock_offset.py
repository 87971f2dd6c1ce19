"""Measures how far this machine's clock is ahead, by the answers to heartbeats."""

from typing import Final

from minka.v1.coordinator_pb2 import HeartbeatRequest, HeartbeatResponse
from minkad.process.clock import ClusterClock, Reading

_MAX_TRIP_NS: Final = 500_000_000  # of a heartbeat and its answer; half of it is the error of the measurement


class ClockOffset:
    """Measures the offset from a clock of the active controller that nobody sets: only its differences from other
    nodes' offsets mean anything. One for each stream of heartbeats.
    """

    def __init__(self, clock: ClusterClock) -> None:
        self._clock = clock
        self._sent: dict[int, Reading] = {}  # by sequence
        self._ahead_ms: int | None = None

    def add_to(self, request: HeartbeatRequest) -> None:
        """Report the last measurement, and remember when this heartbeat was sent."""
        if self._ahead_ms is not None:
            request.clock_ahead_ms = self._ahead_ms
        self._sent[request.sequence] = self._clock.read()

    def answered(self, response: HeartbeatResponse) -> None:
        """Measure the offset by the answer to a heartbeat, and tell the clock. A slow answer measures nothing."""
        sent, now = self._sent.pop(response.sequence), self._clock.read()
        trip = now.boot_ns - sent.boot_ns
        if not response.clock_ms or trip > _MAX_TRIP_NS:
            return
        self._ahead_ms = (sent.wall_ns + trip // 2) // 1_000_000 - response.clock_ms
        known = response.HasField("clocks_ahead_ms")
        self._clock.told(self._ahead_ms - response.clocks_ahead_ms if known else None, sent)
