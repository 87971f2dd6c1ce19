"""The metrics that a node exposes, to compare with docs and rules."""

import pytest
from prometheus_client import generate_latest

from minkad.http.metrics import Snapshot, create_registry
from minkad.process.telemetry import Telemetry


class _Source:
    telemetry = Telemetry()

    def snapshot(self) -> Snapshot:
        return Snapshot("", "", "", "", 0, 0, 0, False, 0, {"failed": 0}, {"offline": 0}, {"leader": 0})


@pytest.fixture(scope="session")
def exposition() -> str:
    """The answer of /metrics, with every metric in it."""
    return generate_latest(create_registry(_Source(), lambda: {"ca": 2e9, "cert": 1.9e9})).decode()
