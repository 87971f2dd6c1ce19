"""The setup of the integration tests: they run on the loop on which a daemon runs."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loop of minkad. Connections, clocks and transports behave differently on asyncio's own loop."""
    return {"uvloop": uvloop.new_event_loop}
