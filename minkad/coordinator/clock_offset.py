"""Measures how far this machine's wall clock is ahead of the other nodes', by the answers to heartbeats."""

from typing import Final

from minka.v1.coordinator_pb2 import HeartbeatRequest, HeartbeatResponse
from minkad.process.clock import ClusterClock, Reading

_MAX_TRIP_NS: Final = 500_000_000  # from a heartbeat to its answer; the error is at most half of the trip: 250 ms


class ClockOffset:
    """Measures the offset of this machine's wall clock from the active controller's monotonic clock, on one stream of
    heartbeats. Since a monotonic clock has no date, only differences of offsets mean anything: if two nodes report
    5,000 ms and 5,030 ms, the wall clock of the second one is 30 ms ahead.
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
        """Measure the offset by the answer to a heartbeat, and tell the clock. Ignore the answer if it was slow."""
        sent, now = self._sent.pop(response.sequence), self._clock.read()
        trip = now.boot_ns - sent.boot_ns
        if not response.clock_ms or trip > _MAX_TRIP_NS:
            return
        self._ahead_ms = (sent.wall_ns + trip // 2) // 1_000_000 - response.clock_ms
        known = response.HasField("clocks_ahead_ms")
        self._clock.told(self._ahead_ms - response.clocks_ahead_ms if known else None, sent)
