"""Clients of the simulated key-value store. They send most writes and reads to the leader that a node's table names."""

import asyncio
from typing import TYPE_CHECKING, Final

from minka.errors import Code, MinkaError, error_from_proto, newer_rows
from minka.v1.cluster_pb2 import Partition
from minka.v1.errors_pb2 import Error
from minka.wire import kv_frames
from minkad.core.state import range_of

if TYPE_CHECKING:
    from tests.simulation.full_world import FullWorld
    from tests.simulation.process import Process

_UNKNOWN: Final = (Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED)
_PAUSE: Final = 0.05  # mean seconds between two rounds of requests
_AT_ONCE: Final = 4  # partitions in a round
_READS: Final = 0.4  # the share of requests that read
_ASTRAY: Final = 0.1  # the share of requests that go to a random node instead of the leader
_TIMEOUT_MS: Final = 700
_TRIES: Final = 2
_MAX_READ: Final = 100


class Clients:
    """Clients of the store. Each client finds the leader in the table of a random node, and runs on the machine of the
    node that it asks.
    """

    def __init__(self, world: "FullWorld") -> None:
        self._world = world
        self._number = 0
        self._ended = False
        self.under_way = 0

    def begin(self) -> None:
        """Write and read from now on."""
        self._world.after(1.0, self._next)

    def end(self) -> None:
        """Stop the requests."""
        self._ended = True

    def _next(self) -> None:
        world, rng = self._world, self._world.rng
        if self._ended:
            return
        world.after(rng.expovariate(1 / _PAUSE), self._next)
        processes = world.processes()
        if not processes:
            return
        known = rng.choice(processes).coordinator.state.partitions
        for place, id_ in enumerate(rng.sample(list(known), min(len(known), _AT_ONCE))):
            row = known[id_]
            for one in processes if place == 0 else ():
                world.data.check_age(one, id_)
            process = rng.choice(processes) if rng.random() < _ASTRAY else self.leader(row)
            if process is not None and row.keyspace_id in world.keyspaces:
                process.spawn(self._read(process, row) if rng.random() < _READS else self._write(process, row))

    def leader(self, row: Partition) -> "Process | None":
        """The process of the row's leader; None if the process doesn't run now."""
        process = self._world.machine(row.leader).process if row.leader else None
        if process is None or not process.built or not process.alive:
            return None
        return process if self._world.now >= process.machine.stopped_until else None

    # Requests

    async def _write(self, process: "Process", row: Partition) -> None:
        world = self._world
        pairs = {self.new_key(row): b"v%d" % self._number for _ in range(world.rng.randint(1, 2))}
        if loaded := world.data.rewritable(row):
            pairs[loaded[0]] = b"v%d" % self._number
        if not all(range_of(row).contains(key) for key in pairs):
            return
        world.data.begins(row, pairs)
        body = kv_frames.encode(kv_frames.WriteBody(list(pairs), list(pairs.values())))
        for _ in range(_TRIES):
            self.under_way += 1
            try:
                await self.ask(process, kv_frames.Op.WRITE, row, body)
            except MinkaError as error:
                if not process.alive or error.code in _UNKNOWN:
                    return
                newer = self._follow(row, error)
                if newer is None or not all(range_of(newer).contains(key) for key in pairs):
                    world.data.refuses(row, pairs)
                    return
                row = newer
                leader = self.leader(row)
                if leader is not process:
                    if leader is not None:
                        leader.spawn(self._again(leader, row, pairs, body))
                    return
            else:
                if process.alive:
                    world.data.acknowledges(process, row, pairs)
                return
            finally:
                self.under_way -= 1

    async def _again(self, process: "Process", row: Partition, pairs: dict[bytes, bytes], body: bytes) -> None:
        """Send the write again, to the leader that the refusal names."""
        try:
            await self.ask(process, kv_frames.Op.WRITE, row, body)
        except MinkaError as error:
            if process.alive and error.code not in _UNKNOWN:
                self._world.data.refuses(row, pairs)
        else:
            if process.alive:
                self._world.data.acknowledges(process, row, pairs)

    async def _read(self, process: "Process", row: Partition) -> None:
        """Read some of the keys whose writes are acknowledged or have an unknown outcome."""
        data, rng = self._world.data, self._world.rng
        expected, maybe = data.known_in(row), data.open_in(row)
        keys = [*expected, *maybe]
        if not keys:
            return
        keys = rng.sample(keys, min(len(keys), _MAX_READ))
        try:
            answer = await self.ask(process, kv_frames.Op.READ, row, kv_frames.encode(keys))
        except MinkaError:
            return
        if process.alive:
            values = kv_frames.decode_values(answer)
            data.reads(process, row, expected, maybe, dict(zip(keys, values, strict=True)))

    def new_key(self, row: Partition) -> bytes:
        """Return a key of the partition that no client has used before."""
        self._number += 1
        for _ in range(_TRIES):
            key = b"%02x-%d" % (self._world.rng.randrange(256), self._number)
            if range_of(row).contains(key):
                return key
        return b"%s\x00%d" % (row.start_key, self._number)

    @staticmethod
    def _follow(row: Partition, error: MinkaError) -> Partition | None:
        """The newer row of the partition that came with the refusal; None if the refusal has none."""
        newer = [one for one in newer_rows(error) if one.id == row.id and one.partition_epoch > row.partition_epoch]
        return newer[0] if newer else None

    @staticmethod
    async def ask(process: "Process", op: kv_frames.Op, row: Partition, body: bytes) -> bytes:
        """Send the request; returns the answer's body. Raises MinkaError."""
        share = process.memory.share()
        try:
            group = kv_frames.Group(op, row.id, row.generation, body)
            done = asyncio.Event()
            ticket = process.manager.requests.begin([group], _TIMEOUT_MS, share, lambda _: done.set())
            await done.wait()
        finally:
            share.close()
        (result,) = ticket.answers
        if result.error is not None:
            raise error_from_proto(Error.FromString(result.error))
        return result.body or b""
