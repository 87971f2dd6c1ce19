"""The work of a node from its start to its end: it listens, runs its tasks, hands its leaderships over, and closes."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, Final, NoReturn

from aiohttp import web

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import NodeState
from minkad.config.addresses import is_loopback
from minkad.data_port.port import DataPort
from minkad.data_port.raft import RaftService
from minkad.data_port.resp.redis_port import RespPort
from minkad.http import server as http
from minkad.http.metrics import create_registry
from minkad.http.rest import Rest
from minkad.loads.collecting import Collecting
from minkad.node.wiring import Parts
from minkad.process import garbage, systemd, tasks
from minkad.process.exits import end_at_once
from minkad.process.loop_lag import LoopLag
from minkad.rpc.credentials import Credentials
from minkad.rpc.server import Server
from minkad.rpc.spool import SpoolService, spool_handler
from minkad.rpc.validation import check
from minkad.storage.disk_guard import DiskGuard

log: Final = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 2.0
GOODBYE_SECONDS: Final = 0.5  # for the goodbye of a node that can't go on
FOUNDERS_POLL: Final = 0.2  # seconds
SHUTDOWN_SECONDS: Final = 5.0  # for others to take over the partitions that this node leads
_QUORUM_POLL: Final = 0.05  # seconds
_STOP_SECONDS: Final = 0.2  # for open calls


class Serving:
    """One run of a node's parts."""

    def __init__(self, parts: Parts, guard: DiskGuard, credentials: Credentials | None) -> None:
        self._parts = parts
        self._guard = guard
        self._credentials = credentials
        self._config = parts.config
        self._data_port: DataPort | None = None

    def renew_certificates(self) -> None:
        """Use the present certificates for all connections from now on; gRPC asks for them itself."""
        if self._data_port is not None:
            self._data_port.renew()

    async def run(self, stopped: "asyncio.Task[bool]") -> None:
        """Run until `stopped` ends and all leaderships are handed over. Raises MinkaError if the node can't go on."""
        parts = self._parts
        await parts.spool.start()
        await parts.manager.start()
        server, data_port = self._server(), self._made_data_port()
        await server.start()
        await data_port.start()
        self._data_port = data_port
        runner = await self._listen_http()
        works = self._tasks()
        try:
            await _wait_for_end(works.values(), stopped)
            await server.announce_stop()
            await self._drain(works["member"])
        except MinkaError as error:
            if error.code is Code.DATA_DIRECTORY_ROLLED_BACK:
                parts.log_db.forget_start()
            if parts.log_db.error is not None:
                await self._end_by_failure(works["member"], parts.log_db.error)
            raise
        finally:
            stopped.cancel()
            for work in works.values():
                work.cancel()
            await asyncio.gather(*works.values(), return_exceptions=True)
            parts.coordinator.resign()
            data_port.close()
            await server.stop(_STOP_SECONDS)
            await runner.cleanup()
            await data_port.wait_closed()
            await self._close()

    def _made_data_port(self) -> DataPort:
        parts, credentials = self._parts, self._credentials
        tls = (lambda: credentials.data_port) if credentials is not None else None
        own, requests, telemetry = parts.identity, parts.manager.requests, parts.telemetry
        memory = parts.memory.streams
        resp = RespPort(
            own.node_id,
            own.cluster_id,
            self._config.data_address,
            parts.coordinator,
            requests,
            telemetry,
            memory,
            parts.channels.tls_context,
            parts.health.knows_table,
        )
        raft = RaftService(parts.raft_receiver.begin)
        return DataPort(
            self._config.data_listen, own.cluster_id, own.node_id, parts.manager, telemetry, memory, tls, resp, raft
        )

    def _server(self) -> Server:
        parts, config, ingesting = self._parts, self._config, self._parts.manager.ingesting
        assert ingesting is not None
        return Server(
            config.listen.grpc,
            parts.identity,
            parts.coordinator,
            parts.tables,
            parts.controller_service,
            parts.replica_control,
            parts.manager,
            parts.member,
            parts.raft_receiver,
            self._credentials,
            parts.memory,
            parts.health.describe,
            parts.counting,
            parts.gateway,
            parts.sessions,
            SpoolService(parts.spool, parts.uploading, ingesting, parts.disk.room),
            spool_handler(parts.spool, parts.uploading),
            parts.history,
        )

    async def _listen_http(self) -> web.AppRunner:
        parts, listen = self._parts, self._config.listen
        registry = create_registry(parts.health, self._credentials.expiry if self._credentials is not None else None)
        rest = None
        if self._config.serves_rest:
            rest = Rest(parts.gateway, check, is_local=is_loopback(listen.http)).app()
        return await http.start(http.create_app(parts.health, registry, rest), listen.http)

    def _tasks(self) -> dict[str, asyncio.Task[None]]:
        """The tasks of the node; if one ends before the stop, the node has failed."""
        parts = self._parts
        works = {
            "raft": parts.driver.run(),
            "member": parts.member.run(),
            "watch": parts.watch.run(),
            "announce": self._announce(),
            "watchdog": systemd.watchdog(parts.health.is_live),
            "log failure": self._log_failure(),
            "loop lag": LoopLag(parts.telemetry).run(),
            "garbage": garbage.collect(parts.memory.is_flooded),
            "disk space": parts.disk.watch(),
            "spool": self._collect_spool(),
            "history": parts.history.run(),
            "counts": parts.counting.run(),
            "shards' heartbeats": parts.relay.run(),
            "shards' sessions": parts.sessions.run(),
            "payloads": parts.payloads.run(parts.duties, parts.is_controller),
        }
        return {name: tasks.awaited(work, name) for name, work in works.items()}

    async def _close(self) -> None:
        """Take the parts down in the reverse order of their layers; a node that can't go on ends instead."""
        parts = self._parts
        await parts.payloads.close()
        if parts.log_db.error is None:
            await parts.history.record()
        await parts.manager.close()
        await parts.uploading.close()
        await parts.fetching.close()
        await parts.spool.close()
        if parts.log_db.error is not None:
            end_at_once(parts.log_db.error)
        self._guard.stop()
        parts.transport.close()
        await parts.channels.close()
        parts.log_db.close()

    async def _collect_spool(self) -> None:
        parts = self._parts
        assert parts.manager.ingesting is not None
        await Collecting(parts.spool, parts.coordinator, parts.manager.ingesting.is_in_log).run()

    async def _log_failure(self) -> None:
        """Raises the MinkaError for which the log database takes no more writes: the node must stop."""
        log_db = self._parts.log_db
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def fail(error: MinkaError) -> None:
            if not failed.done():  # else the node is ending already
                failed.set_exception(error)

        log_db.on_failure = fail
        if log_db.error is not None:
            raise log_db.error
        await failed

    async def _end_by_failure(self, membership: asyncio.Task[None], error: MinkaError) -> NoReturn:
        """The disk, or another essential part, has failed: serve nothing from now on, let others lead this node's
        partitions, and end. Nothing is closed, since each of the databases would try to write first, and wait.
        """
        log.error("the node can't go on, and ends", extra={"reason": str(error)})
        membership.cancel()
        await asyncio.gather(membership, return_exceptions=True)
        self._parts.member.clearance.revoke()
        if not self._parts.driver.is_leader:  # its own goodbye would have to be stored here
            await self._parts.member.leave(GOODBYE_SECONDS)
        end_at_once(error)

    # The start, as others see it

    async def _announce(self) -> None:
        """READY when the log is replayed: everything that was known to be committed at the last stop is applied."""
        while not self._parts.health.is_replayed():
            await asyncio.sleep(0.01)
        log.info("ready", extra={"address": self._config.grpc_address, "http": self._config.http_address})
        systemd.ready(f"Serving {self._config.grpc_address}")
        if not self._parts.health.is_founded():
            await self._await_founders()

    async def _await_founders(self) -> None:
        """Log the missing founders whenever they change."""
        health = self._parts.health
        told: list[str] = []
        while not health.is_founded():
            missing = health.silent_voters()
            if missing and missing != told:
                told = missing
                log.info("waiting for %s to found the cluster", ", ".join(missing))
                systemd.status(f"Waiting for {', '.join(missing)} to found the cluster")
            await asyncio.sleep(FOUNDERS_POLL)
        systemd.status(f"Serving {self._config.grpc_address}")

    # The end

    async def _drain(self, membership: asyncio.Task[None]) -> None:
        """Hand over this node's leaderships, answer what was begun; then stop serving, hand over the leadership of the
        coordinator, and say goodbye.
        """
        log.info("stopping")
        systemd.stopping("Handing over")
        parts, own = self._parts, self._parts.identity.node_id
        if any(len(p.isr) > 1 for p in parts.coordinator.state.led_by(own)):
            await self._while_quorum(parts.member.shut_down(SHUTDOWN_SECONDS), "hand-over")
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await parts.manager.drain()
        except TimeoutError:
            log.warning("some requests could not be answered in time", extra={"seconds": DRAIN_SECONDS})
        membership.cancel()
        await asyncio.gather(membership, return_exceptions=True)
        parts.member.clearance.revoke()
        parts.sessions.end_all("this node stops")
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._step_down()
        except TimeoutError:
            log.warning("no other voter took over the leadership in time", extra={"seconds": DRAIN_SECONDS})
        await self._while_quorum(parts.member.leave(DRAIN_SECONDS), "goodbye")

    async def _while_quorum(self, saying: Coroutine[Any, Any, None], name: str) -> None:
        """Do work that needs a record, as long as most voters are up. When a whole cluster stops, the last nodes can't
        record anything.
        """
        task = tasks.awaited(saying, name)
        try:
            while self._has_quorum() and not task.done():
                await asyncio.wait([task], timeout=_QUORUM_POLL)
            if task.done():
                await task
            else:
                log.info("nothing can be recorded any longer: most voters are gone", extra={"left_out": name})
        finally:
            tasks.drop(task)

    def _has_quorum(self) -> bool:
        """True if most voters may answer: they have not left, and their data ports are not known to be silent."""
        parts, silent = self._parts, self._parts.watch.unanswered()
        nodes = (node for node in parts.coordinator.state.nodes.values() if node.id != parts.identity.node_id)
        gone = {node.raft_id for node in nodes if node.state == NodeState.NODE_STATE_LEFT or node.id in silent}
        voters = parts.driver.conf_state.voters  # still empty on a node that has just joined
        return not voters or 2 * sum(voter not in gone for voter in voters) > len(voters)

    async def _step_down(self) -> None:
        """Ask a LIVE voter to lead, if this node leads and there is one."""
        own, coordinator, driver = self._parts.identity.raft_id, self._parts.coordinator, self._parts.driver
        live = {n.raft_id for n in coordinator.state.nodes.values() if n.state == NodeState.NODE_STATE_LIVE}
        others = [voter for voter in driver.conf_state.voters if voter != own and voter in live]
        if not driver.is_leader or not others:
            return
        match = driver.match()
        driver.transfer_leadership(max(others, key=lambda raft_id: match.get(raft_id, 0)))
        while coordinator.leader() in (None, coordinator.node_with(own)):
            await asyncio.sleep(0.01)


async def _wait_for_end(works: Iterable[asyncio.Task[None]], stopped: "asyncio.Task[bool]") -> None:
    running: set[asyncio.Task[None] | asyncio.Task[bool]] = {*works, stopped}
    while not stopped.done():
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for work in done:
            await work  # raises the error that ended it
