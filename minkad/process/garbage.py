"""Python's garbage collection in turns of a few milliseconds: a full collection looks at every object (ten thousand
replicas have a million), and holds the loop for 100 ms or more.
"""

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Final

_POLL_S: Final = 0.1
_BUSY_POLL_S: Final = 0.02  # while many objects are made, the collector's work grows fast
_YOUNG: Final = 3  # after this many collections of the middle generation (7,000 new objects each), collect the oldest
_LOOK_S: Final = 60.0  # between two looks at the size of memory
_GROWN: Final = 1.25  # times the memory after the last full collection: the growth may be garbage, so collect again
_NEVER: Final = 1_000_000


async def collect(is_flooded: Callable[[], bool]) -> None:
    """Collect until cancelled. Objects that survive a collection are set aside, until Python's memory has grown by a
    quarter. While `is_flooded`, they stay aside: then the growth is memory of clients' requests, and not garbage.
    """
    young, middle, oldest = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    gc.freeze()  # the objects of a start: with tens of thousands of replicas, a look at them takes 100 ms
    loop = asyncio.get_running_loop()
    kept, look_at, poll_s = sys.getallocatedblocks(), loop.time() + _LOOK_S, _POLL_S
    try:
        while True:
            seen = gc.get_stats()[1]["collections"]
            await asyncio.sleep(poll_s)
            poll_s = _POLL_S if gc.get_stats()[1]["collections"] == seen else _BUSY_POLL_S
            if loop.time() >= look_at and not is_flooded():
                look_at = loop.time() + _LOOK_S
                if sys.getallocatedblocks() > _GROWN * kept:
                    gc.unfreeze()
                    gc.collect()
                    gc.freeze()
                    kept = sys.getallocatedblocks()
            elif gc.get_count()[2] >= _YOUNG:
                gc.collect()
                gc.freeze()
    finally:
        gc.set_threshold(young, middle, oldest)
        gc.unfreeze()
