"""The state that the handles of one client share: the routing table and its refreshes, channels, streams, calls under
way.
"""

import asyncio
import itertools
import logging
import zlib
from collections.abc import Sequence
from random import Random
from typing import Final

import grpc

from minka import tls_files
from minka.cluster.routing_table import HashRoutes, RoutingTable
from minka.engine.call import Call, Part, closed
from minka.engine.grpc_calls import (
    aio_channel,
    channel_credentials,
    channel_options,
    checked_endpoints,
    clipped,
    error_from_call,
    has_ended,
    unreachable,
)
from minka.engine.own_node import OwnNode
from minka.engine.retry import delay_s
from minka.engine.stream import Connect, NodeStream, to_port
from minka.engine.wanted_rows import Wanted
from minka.errors import Code, MinkaError
from minka.tls import Tls
from minka.v1 import admin_pb2
from minka.v1.admin_pb2_grpc import MetadataStub
from minka.wire.kv_frames import WRITING, Op

MAX_CALLS: Final = 100_000
_CONNECT_TIMEOUT_S: Final = 2.0
_TABLE_TIMEOUT_S: Final = 1.0  # the most time for one node to give its table
_HEDGE_S: Final = 0.1  # after this time without an answer the next node is asked, too
_MAX_ASKED: Final = 5  # the most nodes asked in one refresh, once the client has a table
_REFRESH_GAP_S: Final = 0.03  # the least time between two refreshes
# A keyspace counts as unknown once this many tables have lacked it. The table of a node that lags may lack a new
# keyspace, so the client fetches several tables, which takes about 0.5 s.
_KEYSPACE_TRIES: Final = 7
# After one of these codes, a client without a table asks again until its call's deadline: a node is there, but is slow
# or has no table yet. All other codes mean that addresses or certificates are wrong.
_ASKED_AGAIN: Final = (Code.NO_CONTROLLER, Code.DEADLINE_EXCEEDED)
_log: Final = logging.getLogger("minka")


class Core:
    """The state and connections that one client's handles share. They belong to the event loop of the first call."""

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        endpoints: Sequence[str],
        refresh_interval: float,
        rng: Random,
        tls: Tls | None,
        own_node: OwnNode | None = None,
    ) -> None:
        self.table: Final = RoutingTable()
        self.rng: Final = rng
        self.calls: Final[set[Call]] = set()
        self._endpoints: Final = checked_endpoints(endpoints)
        self._credentials: Final = channel_credentials(tls)
        self._tls: Final = tls_files.client_context(tls, tls_files.read(tls)) if tls is not None else None
        self._own_node: Final = own_node
        self._refresh_interval = refresh_interval
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._streams: dict[tuple[str, str], NodeStream] = {}  # by a node's addresses for gRPC and for data
        self._has_table = False
        self._refresh: asyncio.Task[MinkaError | None] | None = None
        self._refreshed_at = float("-inf")
        self._wanted: Final = Wanted()
        self._wants_newer = False  # the next fetch gets newer rows, too, not only missing rows
        self._fetches_newer = False  # a fetch that gets newer rows is under way
        self._timer: asyncio.TimerHandle | None = None
        self._state = "new"

    async def begin(self, name: str, op: Op, timeout: float) -> Call:
        """Begin a call on a keyspace; fetch the table first if the keyspace isn't known. Raises UNKNOWN_KEYSPACE,
        UNREACHABLE, DEADLINE_EXCEEDED, OVERLOADED, and INVALID_ARGUMENT if the client is closed or belongs to another
        loop.
        """
        if self._state != "open" or asyncio.get_running_loop() is not self.loop:
            self._open()
        if len(self.calls) >= MAX_CALLS:
            raise MinkaError(Code.OVERLOADED, f"{MAX_CALLS} calls of this client are under way")
        deadline = self.loop.time() + timeout
        if not self._wanted.has(name):
            await self._look_for(name, deadline)
        return Call(self, self.table.keyspace(name), op, timeout, deadline)

    async def close(self) -> None:
        """Give up the calls under way and close the connections. Raises INVALID_ARGUMENT in another loop than the
        client's, unless the client's loop is closed.
        """
        if self._state == "open" and has_ended(self.loop):
            self._refresh = self._timer = None
            for held in (self.calls, self._streams, self._channels):
                held.clear()
        self._state = "closed"
        for call in list(self.calls):
            call.abort()
        if self._timer is not None:
            self._timer.cancel()
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.wait([self._refresh])
        # No local variable may hold a channel: once it is closed, nothing may refer to it (see `aio_channel`).
        while self._streams:
            self._streams.popitem()[1].close()
        while self._channels:
            await self._channels.popitem()[1].close()

    def send(self, part: Part) -> None:
        """Give the part to the stream of the partition's leader; a stale read may go to any in-sync replica."""
        assert self._state == "open", "closing gives up every call"
        if part.keys and not part.call.routes.belong_together(part.keys):
            part.call.regroup(part)
            return
        route = part.route = part.find_route()
        if route is None and part.scan is None and self._lacks_row(part):
            return
        part.node = self._node_for(part)
        part.address, data_address = self.table.addresses_of(part.node)
        if data_address:
            self._stream(part.address, data_address).add(part)
            return
        if route is None or part.node:
            why = MinkaError(Code.PARTITION_NOT_HERE, "the table lacks the partition's row, or the node's address")
        else:
            why = MinkaError(Code.PARTITION_OFFLINE, f"partition {route.partition_id} has no leader")
        self.loop.call_soon(part.call.refused, part, why)

    def _lacks_row(self, part: Part) -> bool:
        """True if the partition's row hasn't come yet; then the part waits for the row."""
        routes = part.call.routes
        if not isinstance(routes, HashRoutes) or not self._wanted.need_slot(routes.name, part.place):
            return False
        part.attempts += 1
        part.error = MinkaError(Code.PARTITION_NOT_HERE, "the partition's row has not come yet")
        part.waits = True
        self._fetch_soon("")
        self.loop.call_later(delay_s(part.attempts, self.rng), part.call.send_again, part)
        return True

    def _node_for(self, part: Part) -> str:
        route = part.route
        if route is None:
            return ""
        if part.call.op is not Op.READ_STALE or not route.readable:
            return route.leader
        others = [node for node in route.readable if node != part.node]  # without the node that was tried
        return self.rng.choice(others or route.readable)

    def has_newer_route(self, part: Part) -> bool:
        """True if the table now has a better route for the part of a call than the route by which it was sent. The
        better route names a leader. It comes from a newer row, or from the row of another partition that has the keys.
        """
        route, old = part.find_route(), part.route
        if route is None or not route.leader or old is None:
            return route is not None and bool(route.leader)
        return route.partition_id != old.partition_id or route.partition_epoch > old.partition_epoch

    def has_moved(self, part: Part) -> bool:
        """True if, by the present table, the node to which the part was sent can no longer answer it."""
        route = part.find_route()
        if part.call.op is Op.READ_STALE:
            return route is not None and bool(route.readable) and part.node not in route.readable
        return route is not None and bool(route.leader) and (part.route is None or route.leader != part.route.leader)

    def refresh_soon(self, avoid: str = "") -> asyncio.Task[MinkaError | None]:
        """Fetch newer rows of the table in the background, from another node than `avoid` if possible. Returns the
        error, if any.
        """
        self._wants_newer = self._wants_newer or not self._fetches_newer
        return self._fetch_soon(avoid)

    def _fetch_soon(self, avoid: str) -> asyncio.Task[MinkaError | None]:
        if self._refresh is None:
            self._refresh = self.loop.create_task(self._refresh_table(avoid), name="minka table refresh")
        return self._refresh

    def _on_quiet(self, address: str) -> None:
        """A node is silent: find out which nodes lead its partitions now. Once other nodes lead them, reads no longer
        wait for the silent node. Writes still wait as long as the controller hears that node, since the node will then
        answer them.
        """
        if self._state == "closed":
            return
        self.refresh_soon(avoid=address)
        for call in list(self.calls):
            for part in [part for part in call.parts if part.address == address and self.has_moved(part)]:
                if part.sent and call.op in WRITING:
                    if self.table.is_alive(part.node):
                        continue
                    text = f"{address} is silent, and no longer leads the partition; the write may have been done"
                    call.refused(part, MinkaError(Code.OUTCOME_UNKNOWN, text))
                else:
                    call.reroute(part)

    def _open(self) -> None:
        if self._state == "closed":
            raise MinkaError(Code.INVALID_ARGUMENT, "the client is closed")
        if self._state == "open":
            raise MinkaError(Code.INVALID_ARGUMENT, "the client belongs to another event loop")
        self.loop = asyncio.get_running_loop()
        self._state = "open"

    async def _look_for(self, name: str, deadline: float) -> None:
        """Refresh the table until the keyspace is in it. The keyspace counts as unknown once `_KEYSPACE_TRIES` tables
        have lacked it.
        """
        missing_from, error = 0, None
        self._wanted.need(name)
        for attempt in itertools.count(1):
            refresh = self.refresh_soon()
            await asyncio.wait([refresh], timeout=deadline - self.loop.time())
            if self._state == "closed":
                raise closed()
            if not refresh.done() or self.loop.time() >= deadline:  # a timer may end a little early
                why = f": {clipped(error.message)}" if error is not None else ""
                raise MinkaError(Code.DEADLINE_EXCEEDED, f"no partition table in time{why}")
            error = refresh.result()
            if self._wanted.has(name):
                return
            if error is not None and _is_final(error) and not self._wanted.lacks(name):  # a node refused the keyspace
                raise error
            missing_from += error is None and not self.table.knows(name)
            if missing_from == _KEYSPACE_TRIES:
                self._wanted.forget(name)
                return
            if error is not None and not self._has_table and error.code not in _ASKED_AGAIN:
                raise error
            await asyncio.sleep(delay_s(attempt, self.rng))

    async def _refresh_table(self, avoid: str) -> MinkaError | None:
        error, goes_on = None, True
        try:
            if self._wants_newer:
                await asyncio.sleep(self._refreshed_at + _REFRESH_GAP_S - self.loop.time())
            if await self._fetch(avoid):
                for part in self._moved_reads():
                    part.call.reroute(part)
                for part in self._rerouted():
                    part.call.send_again(part)
            self._has_table = True
            await self._forget_nodes()
        except MinkaError as caught:
            error = caught  # calls that need a newer table go on asking until their deadline
            if _is_final(error):
                _log.warning("the partition table can't be used: %s", error)
        except (asyncio.CancelledError, GeneratorExit):
            goes_on = False  # the client or its loop is ending
            raise
        finally:  # also after an unforeseen error: if `_refresh` stayed set, no other refresh would begin
            self._refreshed_at = self.loop.time()
            self._refresh, self._fetches_newer = None, False
            if goes_on:
                self._plan_refresh()
        return error

    def _plan_refresh(self) -> None:
        """Plan the next refresh of the table: after the usual interval, and also at once if a call wants newer rows."""
        if self._wants_newer:
            self._fetch_soon("")
        if self._timer is not None:
            self._timer.cancel()
        after = self._refresh_interval * self.rng.uniform(0.8, 1.2)
        self._timer = self.loop.call_later(after, self.refresh_soon)

    async def _fetch(self, avoid: str) -> bool:
        """Fetch the missing rows, and also newer rows if a call wants them; return True if any route changed."""
        wants_newer = self._fetches_newer = self._wants_newer
        self._wants_newer = changed = False
        if (missing := self._wanted.missing()) is not None:
            wants_newer = wants_newer and self.table.version > 0
            changed = await self._fetch_missing(missing, avoid)
        if wants_newer:
            request = self._wanted.newer(self.table.version, self.table.cluster_id)
            changed |= self.table.take(await self._fetch_table(request, avoid))
        return changed

    async def _fetch_missing(self, missing: admin_pb2.GetTableRequest, avoid: str) -> bool:
        """Fetch the missing rows; return True if any route changed. If a node refuses the rows of a keyspace, forget
        the keyspace.
        """
        try:
            table = (await self._fetch_table(missing, avoid)).table
        except MinkaError as error:
            if not _is_final(error):
                raise
            if len(missing.keyspaces) > 1:
                return await self._fetch_one_by_one(missing, avoid)
            self._wanted.forget(missing.keyspaces[0].keyspace)
            raise
        changed = self.table.add(table)
        self._wanted.came(missing, list(table.keyspaces))
        return changed

    async def _fetch_one_by_one(self, missing: admin_pb2.GetTableRequest, avoid: str) -> bool:
        """Fetch the rows of each keyspace in a request of its own: if a node refuses one keyspace, the rows of the
        others still come.
        """
        changed, refusal = False, None
        for keyspace in missing.keyspaces:
            alone = admin_pb2.GetTableRequest(keyspaces=[keyspace], accepts_zlib=missing.accepts_zlib)
            try:
                changed |= await self._fetch_missing(alone, avoid)
            except MinkaError as error:
                if not _is_final(error):
                    raise
                refusal = error
        if refusal is not None:
            raise refusal
        return changed

    async def _fetch_table(self, request: admin_pb2.GetTableRequest, avoid: str) -> admin_pb2.GetTableResponse:
        """The first answer of any node: its table, the changes since this client's table, or nothing newer."""
        addresses = list(dict.fromkeys([*self._endpoints, *self.table.addresses()]))
        self.rng.shuffle(addresses)
        addresses.sort(key=lambda address: address == avoid)
        tried: dict[str, MinkaError] = {}
        waiting = list(reversed(addresses[:_MAX_ASKED] if self._has_table else addresses))
        asked: dict[asyncio.Task[admin_pb2.GetTableResponse | MinkaError], str] = {}
        try:
            while waiting or asked:
                if waiting:  # no node was asked yet, or the node that was asked last is slow or refused
                    address = waiting.pop()
                    asked[self.loop.create_task(self._ask_for_table(address, request))] = address
                done, _ = await asyncio.wait(
                    asked, timeout=_HEDGE_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    address = asked.pop(task)
                    if isinstance(answer := task.result(), MinkaError):
                        tried[address] = answer
                    elif answer.HasField("table") or self.table.version:
                        return answer
                    else:
                        tried[address] = MinkaError(Code.NO_CONTROLLER, f"{address} has no partition table yet")
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise unreachable(tried)

    async def _ask_for_table(
        self, address: str, request: admin_pb2.GetTableRequest
    ) -> admin_pb2.GetTableResponse | MinkaError:
        """The node's answer or refusal. No error that leaves this method refers to a channel: see `aio_channel`."""
        own_node = self._own_node
        try:
            if own_node is not None and address == own_node.address:
                response = await own_node.table(request)
            else:
                response = await MetadataStub(self._channel(address)).GetTable(request, timeout=_TABLE_TIMEOUT_S)
        except MinkaError as error:
            return error
        except grpc.aio.AioRpcError as error:
            return error_from_call(error, address, repeatable=True)
        except asyncio.CancelledError as error:
            raise error.with_traceback(None) from None
        return admin_pb2.GetTableResponse.FromString(zlib.decompress(response.zlib)) if response.zlib else response

    def _moved_reads(self) -> list[Part]:
        """The reads under way to nodes that can no longer answer them: the node no longer leads the partition or, for a
        stale read, its replica is no longer in sync.
        """
        reads = (part for call in self.calls if call.op not in WRITING for part in call.parts if part.sent)
        return [part for part in reads if self.has_moved(part)]

    def _rerouted(self) -> list[Part]:
        """The parts that still wait to be sent again although a newer row already names a leader."""
        waiting = (part for call in self.calls for part in call.parts if part.waits)
        return [part for part in waiting if self.has_newer_route(part)]

    async def _forget_nodes(self) -> None:
        """Close the connections to addresses that the cluster no longer has."""
        for addresses in self._streams.keys() - self.table.all_addresses():
            self._streams.pop(addresses).close()
        for address in self._channels.keys() - {*self._endpoints, *self.table.addresses()}:
            await self._channels.pop(address).close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            options = channel_options(_CONNECT_TIMEOUT_S)
            channel = self._channels[address] = aio_channel(address, self._credentials, options)
        return channel

    def _stream(self, address: str, data_address: str) -> NodeStream:
        stream = self._streams.get((address, data_address))
        if stream is None:
            connect = self._connect_to(address, data_address)
            stream = NodeStream(connect, self.loop, lambda: self._on_quiet(address))
            self._streams[address, data_address] = stream
        return stream

    def _connect_to(self, address: str, data_address: str) -> Connect:
        own_node = self._own_node
        if own_node is not None and (address, data_address) == (own_node.address, own_node.data_address):
            return own_node.connect
        return to_port(data_address, self._tls, self.table.cluster_id)


def _is_final(error: MinkaError) -> bool:
    """True if the same request would be refused again."""
    return not error.code.info.retriable and error.code is not Code.DEADLINE_EXCEEDED
