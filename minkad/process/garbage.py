"""Python's garbage collection in turns of a few milliseconds: a full one looks at every object (ten thousand replicas
have a million), and holds the loop for 100 to 200 ms.
"""

import asyncio
import gc
from typing import Final

_POLL_S: Final = 0.1
_BUSY_POLL_S: Final = 0.02  # while many objects are made: what has to be looked at grows fast
_YOUNG: Final = 3  # collections of the middle generation, some 7,000 new objects each, until the oldest is looked at
_FULL_S: Final = 600.0  # until kept objects are looked at again: some may by then be cycles that nobody needs
_NEVER: Final = 1_000_000


async def collect() -> None:
    """Collect until cancelled. What survives a collection is set aside and not looked at again for ten minutes."""
    young, middle, oldest = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    gc.freeze()  # what a start has made: with tens of thousands of replicas, a look at it takes 100 ms
    loop = asyncio.get_running_loop()
    full_at, poll_s = loop.time() + _FULL_S, _POLL_S
    try:
        while True:
            seen = gc.get_stats()[1]["collections"]
            await asyncio.sleep(poll_s)
            poll_s = _POLL_S if gc.get_stats()[1]["collections"] == seen else _BUSY_POLL_S
            if loop.time() >= full_at:
                full_at = loop.time() + _FULL_S
                gc.unfreeze()
            elif gc.get_count()[2] < _YOUNG:
                continue
            gc.collect()
            gc.freeze()
    finally:
        gc.set_threshold(young, middle, oldest)
        gc.unfreeze()
