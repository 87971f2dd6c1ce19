"""A client process of several benchmarks: it keeps some calls of minka.AsyncClient under way.

The argument is a `Work` in JSON. The process prints a line when it is connected, and starts its calls when it reads a
line from stdin. It ends after `Work.seconds`, or when it reads a second line, and prints its measurements in JSON.
"""

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Final

import uvloop

import minka
from benchmarks.processes import answer
from minka.cluster.hashing import murmur3

VALUE: Final = b"v" * 100


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a process: `operation` is put or get, with `batch` keys in a call (0: the methods for a single key).

    Each of the `concurrency` clients waits `gap_s` seconds between its calls. If there are `slots`, the n-th client
    writes only to the n-th of these slots; `partitions` is then the keyspace's number of slots.
    """

    endpoints: list[str]
    keyspace: str
    operation: str
    concurrency: int
    batch: int
    seconds: float
    key_count: int
    seed: int = 0
    gap_s: float = 0.0
    slots: list[int] = field(default_factory=list)
    partitions: int = 0


@dataclass(slots=True)
class Done:
    """The work done: the number of keys written or read, the total seconds, and the calls. Each call is the client's
    number, the start by the clock that all processes of the machine share (CLOCK_MONOTONIC), and the seconds.
    """

    keys: int = 0
    seconds: float = 0.0
    stopped: bool = False
    calls: list[tuple[int, float, float]] = field(default_factory=list)


def key(number: int) -> bytes:
    """The key with this number: 16 bytes."""
    return b"key:%012d" % number


async def work(what: Work) -> Done:
    """Do the work. Raises MinkaError if a call fails."""
    keys = [key(number) for number in range(what.key_count)]
    done = Done()
    async with minka.AsyncClient(what.endpoints, keyspace=what.keyspace) as client:
        await client.get_many(keys[:1000])  # connects to all nodes
        answer("connected")
        sys.stdin.readline()
        asyncio.get_running_loop().add_reader(sys.stdin, _stop, done)
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(what.concurrency):
                own = [k for k in keys if murmur3(k) % what.partitions == what.slots[number]] if what.slots else keys
                group.create_task(_calls(client, what, number, own, started + what.seconds, done))
        done.seconds = time.monotonic() - started
    return done


def _stop(done: Done) -> None:
    done.stopped = True
    asyncio.get_running_loop().remove_reader(sys.stdin)


async def _calls(
    client: minka.AsyncClient, what: Work, number: int, keys: list[bytes], stop_at: float, done: Done
) -> None:
    """Make one call after the other until `stop_at`, or until `done.stopped` is true."""
    rng = random.Random(f"{what.seed}/{number}")
    now = time.monotonic()
    while now < stop_at and not done.stopped:
        chosen = dict.fromkeys(rng.choices(keys, k=what.batch or 1), VALUE)
        match what.operation, what.batch:
            case "put", 0:
                await client.put(next(iter(chosen)), VALUE)
            case "get", 0:
                await client.get(next(iter(chosen)))
            case "put", _:
                await client.put_many(chosen)
            case _:
                await client.get_many(chosen)
        before, now = now, time.monotonic()
        done.keys += len(chosen)
        done.calls.append((number, before, now - before))
        if what.gap_s:
            await asyncio.sleep(what.gap_s)
            now = time.monotonic()


def main() -> None:
    """Do the work in the argument, and print the measurements."""
    answer(asdict(uvloop.run(work(Work(**json.loads(sys.argv[1]))))))


if __name__ == "__main__":
    main()
