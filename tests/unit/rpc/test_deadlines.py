"""A server answers before its caller gives up. (`tests/cluster/test_duty_api.py` checks it for changes of duties.)"""

import time
from collections.abc import Callable
from typing import Any

import pytest

from minka.errors import Code, MinkaError
from minkad.process.memory import Memory
from minkad.rpc.call_deadlines import time_to_answer
from minkad.rpc.interceptor import Interceptor


class Context:
    """A call whose caller waits for this many seconds, or for ever if `seconds` is None."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def time_remaining(self) -> float | None:
        return self._seconds

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        pass


@pytest.mark.parametrize(("waits", "takes"), [(5.0, 4.75), (0.1, 0.095), (None, 10.0)])
def test_an_answer_takes_a_little_less_time_than_its_caller_waits(waits: float | None, takes: float) -> None:
    context: Any = Context(waits)
    assert time_to_answer(context, 10.0) == pytest.approx(takes)


@pytest.mark.timeout(2)
async def test_a_call_that_gets_no_memory_hears_so_before_its_deadline() -> None:
    """Without an answer, the caller wouldn't know that nothing was done."""
    memory = Memory(1024 * 1024, time.monotonic)
    memory.share().take(1024 * 1024)
    interceptor = Interceptor("test", memory, memory)
    context: Any = Context(0.1)

    async def answer() -> None:
        raise AssertionError("the method is called without memory for the call")

    with pytest.raises(MinkaError) as caught:
        await interceptor.counted("/minka.v1.Admin/GetStatus", 512 * 1024, context, answer)
    assert caught.value.code is Code.OVERLOADED
