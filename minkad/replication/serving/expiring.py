"""Removes expired rows in the background. Readers don't see expired rows even before their removal: see `Requests`.

The leader of a partition knows which keys expire next. To find the keys from before its leadership, the leader sweeps
through its rows once, page by page, but only if a row with an expiry was ever written. It removes nothing before its
node's clock is checked: after a start, the clock may be an hour ahead.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import Group, Op
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.core.replication.replica_storage import DeletedAheadError
from minkad.process.turns import turn
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.applying.opening import Opening
from minkad.replication.background_task import BackgroundTask
from minkad.replication.serving.expiries import LOOK_SECONDS, Schedule
from minkad.replication.serving.routing import Routing
from minkad.replication.serving.writing import Writing
from minkad.replication.surroundings import Surroundings

log: Final = logging.getLogger(__name__)

_LOOKED_AT_ONCE: Final = 500  # replicas, before other tasks get a turn
_UNCHECKED_SECONDS: Final = 0.2  # between two looks whether the clock is checked
_PAGE_ROWS: Final = 1000
_PAGE_BYTES: Final = 256 * 1024
_MAX_PASSED: Final = 20_000
_PAGE_SECONDS: Final = 0.002
# Another node leads, or this node can't write at the moment. Both are normal, so they aren't logged.
_EXPECTED: Final = frozenset(
    {
        Code.NOT_LEADER,
        Code.STALE_GENERATION,
        Code.NO_CLEARANCE,
        Code.NOT_ENOUGH_REPLICAS,
        Code.DEADLINE_EXCEEDED,
        Code.SHUTTING_DOWN,
    }
)


class Expiring(BackgroundTask):
    """For the loop's thread."""

    def __init__(
        self,
        around: Surroundings,
        node: Node[HostedReplica],
        routing: Routing,
        writing: Writing,
        opening: Opening,
    ) -> None:
        super().__init__("expiry", self._run, around.log_db.fail)
        self._replicas: Final = node.replicas
        self._expiries = writing.expiries
        self._routing = routing
        self._writing = writing
        self._opening = opening
        self._unix_ms = around.unix_ms
        self._clock_is_checked = around.clock_is_checked

    async def _run(self) -> None:
        while True:
            await self._look_at_all()
            until = asyncio.get_running_loop().time() + LOOK_SECONDS
            while (left := until - asyncio.get_running_loop().time()) > 0:
                self._expiries.is_changed.clear()
                wait = _UNCHECKED_SECONDS
                if self._clock_is_checked():
                    for partition_id in list(self._expiries.schedules):
                        await self._step(partition_id)
                    wait = min((one.wait(self._unix_ms()) for one in self._expiries.schedules.values()), default=left)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._expiries.is_changed.wait(), min(wait, left))

    async def _look_at_all(self) -> None:
        """Find the replicas that lead and may have rows that expire."""
        for number, replica in enumerate(list(self._replicas.values()), 1):
            if replica.state.role is Role.LEADER and replica.data.may_expire:
                self._expiries.schedule_of(replica)
            if number % _LOOKED_AT_ONCE == 0:
                await turn()

    async def _step(self, partition_id: int) -> None:
        """Read the next page of the sweep, and remove the rows that have expired."""
        replica, schedule = self._replicas.get(partition_id), self._expiries.schedules[partition_id]
        is_led = replica is not None and replica.state.role is Role.LEADER
        if replica is None or not is_led or replica.state.row.leader_epoch != schedule.leader_epoch:
            del self._expiries.schedules[partition_id]
            return
        due = schedule.due(self._unix_ms())
        if not due and schedule.next_key is None:
            return
        try:
            if replica.data.is_closed:
                await self._opening.wait(replica)
            if schedule.next_key is not None:
                await self._sweep(replica, schedule, schedule.next_key)
            if due:
                self._remove(replica, due)
        except MinkaError as error:
            del self._expiries.schedules[partition_id]  # the next look at all replicas begins a new schedule
            if error.code not in _EXPECTED:
                names = {"partition": replica.id, "reason": str(error)}
                log.warning("expired keys are not removed for now", extra=names)
        await turn()

    async def _sweep(self, replica: HostedReplica, schedule: Schedule, start: bytes) -> None:
        end = replica.state.row.end_key
        try:
            keys, rows, is_all = replica.data.stored_page(
                start, end, False, _PAGE_ROWS, _PAGE_BYTES, _MAX_PASSED, _PAGE_SECONDS
            )
        except DeletedAheadError:
            await replica.clear(KeyRange(start, end))
            return
        schedule.add(keys, rows)
        schedule.next_key = None if is_all else keys[-1] + b"\x00"

    def _remove(self, replica: HostedReplica, keys: list[bytes]) -> None:
        """Raises the refusal; DEADLINE_EXCEEDED if writes have to wait for now."""
        asked = Group(Op.OPERATE, replica.id, replica.state.row.generation, b"")
        if self._routing.leader(asked) is not replica or replica.data.is_closed:
            raise self._routing.timed_out(asked)
        self._writing.remove_expired(replica, keys, None)
