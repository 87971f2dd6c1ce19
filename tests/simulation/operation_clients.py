"""Clients of the simulated key-value store whose writes depend on what is there: see `OperationOracle`."""

from random import Random
from typing import TYPE_CHECKING, Final

from minka import wire
from minka.errors import MinkaError
from minka.operations import Add, If, Lifetime, Operation, Outcome, Set, decode_outcomes, decode_versioned
from minka.ranges import is_by_ranges
from minka.v1.cluster_pb2 import Durability, Partition
from minkad.core.state import range_of
from tests.simulation.data_clients import UNKNOWN, ask, leader_of
from tests.simulation.operation_oracle import OPERATED, Key, OperationOracle

if TYPE_CHECKING:
    from tests.simulation.full_world import FullWorld
    from tests.simulation.process import Process

_PAUSE: Final = 0.02  # seconds, the mean
_MOST_SKEW_MS: Final = 1500
_AT_ONCE: Final = 3  # partitions
_CLIENTS: Final = 3  # for each of them
_KEYS: Final = 2  # of a kind, for each first byte
_STEP: Final = 16  # between the first bytes of keys
_KEPT_EXPIRING: Final = 30
_TTL_MS: Final = (100, 3000)


class OperationClients:
    """Each client is at the node that it asks, and knows the table as some node does."""

    def __init__(self, world: "FullWorld") -> None:
        self._world = world
        self._rng = Random(f"operations {world.seed}")  # apart, so that other events keep theirs
        self.oracle = OperationOracle(_MOST_SKEW_MS)
        self._number = 0
        self._ended = False
        self._expiring: list[tuple[Key, bytes, int]] = []  # with the keyspace

    def begin(self) -> None:
        """Operate from now on."""
        for machine in self._world.machines:
            machine.wall_skew_ms = self._rng.randint(0, _MOST_SKEW_MS)
        self._world.after(1.0, self._next)

    def end(self) -> None:
        """Stop."""
        self._ended = True

    def _next(self) -> None:
        world, rng = self._world, self._rng
        if self._ended:
            return
        world.after(rng.expovariate(1 / _PAUSE), self._next)
        processes = world.processes()
        if not processes:
            return
        rows = [row for row in rng.choice(processes).coordinator.state.partitions.values() if self._is_safe(row)]
        if not rows:
            return
        for row in rng.sample(rows, min(len(rows), _AT_ONCE)):
            kind = rng.choice((self._add, self._replace, self._put_for_a_while, self._read_expiring))
            process = leader_of(world, row)
            for _ in range(_CLIENTS):
                if process is not None and process.alive:
                    process.spawn(kind(process, row))

    def _is_safe(self, row: Partition) -> bool:
        """Whether nothing of the partition is ever lost."""
        keyspace = self._world.keyspaces.get(row.keyspace_id)
        if keyspace is None or keyspace.unclean_election:
            return False
        return keyspace.durability != Durability.DURABILITY_ASYNC

    def _key(self, row: Partition, name: bytes) -> tuple[Key, bytes] | None:
        """A key of the partition; None if it has none of those in use."""
        keys = [b"%02x%s%s" % (first, OPERATED, name) for first in range(0, 256, _STEP)]
        mine = [key for key in keys if range_of(row).contains(key)]
        if not mine:
            return None
        key = mine[0]
        group = -row.keyspace_id if is_by_ranges(self._world.keyspaces[row.keyspace_id]) else row.id
        return (group, key), key

    @staticmethod
    async def _operate(process: "Process", row: Partition, operation: Operation) -> Outcome | None:
        """The outcome; None if it isn't known. Raises MinkaError when nothing was done."""
        try:
            (outcome,) = decode_outcomes(await ask(process, wire.Op.OPERATE, row, wire.encode([operation])))
        except MinkaError as error:
            if not process.alive or error.code in UNKNOWN:
                return None
            raise
        return outcome if process.alive else None

    async def _add(self, process: "Process", row: Partition) -> None:
        if (found := self._key(row, b"c%d" % self._rng.randrange(_KEYS))) is None:
            return
        known, key = found
        floor = self.oracle.adds(known)
        try:
            if (outcome := await self._operate(process, row, Add(key, 1))) is not None:
                self.oracle.added(known, floor, outcome.number)
        except MinkaError:
            self.oracle.not_added(known)

    async def _replace(self, process: "Process", row: Partition) -> None:
        """Read it, and replace what was read."""
        if (found := self._key(row, b"r%d" % self._rng.randrange(_KEYS))) is None:
            return
        known, key = found
        try:
            (read,) = decode_versioned(await ask(process, wire.Op.READ_VERSIONED, row, wire.encode([key])))
            if not process.alive:
                return
            self.oracle.reads(known, read)
            self._number += 1
            value, version = b"v%d" % self._number, 0 if read is None else read.version
            outcome = await self._operate(process, row, Set(key, value, If.VERSION, version=version))
            if outcome is not None:
                self.oracle.replaces(known, version, value, outcome)
        except MinkaError:
            return

    async def _put_for_a_while(self, process: "Process", row: Partition) -> None:
        self._number += 1
        if (found := self._key(row, b"e%d" % self._number)) is None:
            return
        known, key = found
        ttl_ms = self._rng.randint(*_TTL_MS)
        self.oracle.puts(known, self._world.unix_ms(), ttl_ms)
        try:
            outcome = await self._operate(process, row, Set(key, b"v", lifetime=Lifetime.FOR, ms=ttl_ms))
        except MinkaError:
            return
        if outcome is not None:
            self.oracle.was_put(known)
            self._expiring = [*self._expiring[1 - _KEPT_EXPIRING :], (known, key, row.keyspace_id)]

    async def _read_expiring(self, process: "Process", row: Partition) -> None:
        mine = [one for one in self._expiring if one[2] == row.keyspace_id and range_of(row).contains(one[1])]
        mine = [one for one in mine if one[0][0] in (row.id, -row.keyspace_id)]
        if not mine:
            return
        known, key, _ = self._rng.choice(mine)
        before = self.oracle.begins_to_read(known)
        try:
            (value,) = wire.decode_values(await ask(process, wire.Op.READ, row, wire.encode([key])))
        except MinkaError:
            return
        if process.alive:
            self.oracle.has_read(known, before, self._world.unix_ms(), is_there=value is not None)
