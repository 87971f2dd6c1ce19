"""One node of a cluster, from its identity to its end: owns the loop and the signals."""

import asyncio
import logging
import os
import signal
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from minka.errors import Code, MinkaError
from minka.v1.raft_pb2 import ConfState
from minkad import config as configuration
from minkad.config import Config
from minkad.node import settings
from minkad.node.joining import new_identity, refuse_older_copy
from minkad.node.serving import Serving
from minkad.node.settings import MIB
from minkad.node.wiring import Parts
from minkad.process import logs, signals, systemd, tasks
from minkad.process.clock import boottime
from minkad.process.exits import end_at_once
from minkad.process.telemetry import Telemetry
from minkad.rpc.channels import Channels
from minkad.rpc.credentials import Credentials
from minkad.storage import identity
from minkad.storage.disk_guard import DiskGuard
from minkad.storage.disk_space import DiskWatch
from minkad.storage.identity import Identity
from minkad.storage.log_database import LogDatabase
from minkad.storage.raft_storage import RaftStorage
from minkad.storage.rocks_threads import lower_background_priority

log: Final = logging.getLogger(__name__)

_ASKED_NODES: Final = 5


class Daemon:
    """`run` builds the parts in the order of the layers, and takes them down in reverse order."""

    def __init__(self, config: Config, path: Path) -> None:
        self._config = config
        self._path = path
        tls = config.certificates
        self._credentials = Credentials(tls, config.advertised_hosts) if tls is not None else None
        self._channels = Channels("", config.node.id, self._credentials)  # until it has joined
        self._parts: Parts | None = None
        self._serving: Serving | None = None
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises MinkaError if the node can't start or can't go on."""
        lock = identity.lock(self._config.data_dir)
        try:
            disk = DiskWatch(self._config.data_dir, self._config.storage.disk_low_mib * MIB)
            disk.give_up_reserve()
            self._watch_signals()
            self._watch_failures()
            incarnation = uuid.uuid4().hex
            identify = tasks.awaited(self._identify(incarnation), "identity")
            stopped = tasks.awaited(self._stop.wait(), "stop")
            await asyncio.wait({identify, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not identify.done():  # it was waiting for a cluster to join
                identify.cancel()
                return
            await self._run_as(await identify, incarnation, disk, stopped)
        finally:
            os.close(lock)

    async def _identify(self, incarnation: str) -> Identity:
        """The identity of the data directory; a new one comes from founding the cluster, or from joining it."""
        config = self._config
        known = identity.load(config.data_dir, config.node.id, config.cluster.name)
        if known is not None:
            return known
        node = settings.node_row(config, uuid.uuid4().hex, incarnation)
        try:
            new = await new_identity(config, node, self._channels, settings.holder_patience(config), boottime)
        finally:
            await self._channels.close()
        identity.save(config.data_dir, new)
        return new

    async def _run_as(self, own: Identity, incarnation: str, disk: DiskWatch, stopped: "asyncio.Task[bool]") -> None:
        config, telemetry = self._config, Telemetry()
        log_db = self._open_log(own)
        log_db.on_sync = telemetry.log_sync.observe
        guard = DiskGuard(log_db, config.storage.max_sync_s)
        guard.start()
        raft_storage = await _raft_storage(log_db, config, own)
        heartbeat_interval = config.membership.heartbeat_interval_ms / 1000
        self._channels = Channels(own.cluster_id, own.node_id, self._credentials, heartbeat_interval)
        parts = self._parts = Parts(config, own, incarnation, log_db, raft_storage, disk, self._channels, telemetry)
        # Before it votes, ask the nodes that answer what they know of its starts. Registering asks the controller,
        # later.
        try:
            await refuse_older_copy(self._channels, parts.other_addresses()[:_ASKED_NODES], own, log_db.starts)
        except MinkaError:
            log_db.forget_start()
            raise
        self._serving = Serving(parts, guard, self._credentials)
        await self._serving.run(stopped)

    def _open_log(self, own: Identity) -> LogDatabase:
        log_db = LogDatabase.open(self._config.data_dir / "log", must_exist=own.started)
        lower_background_priority()
        if not own.started:
            identity.save(self._config.data_dir, replace(own, started=True))
        return log_db

    # Failures that nobody awaits

    def _watch_failures(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unawaited)
        tasks.watch_threads(loop)

    def _unawaited(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the node after this failure; any other context of asyncio's is only logged."""
        if not context.get(tasks.ENDS_NODE):
            loop.default_exception_handler(context)
        elif self._parts is None:
            end_at_once(_failure(context))
        else:
            self._parts.log_db.fail(_failure(context))

    # Signals

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        if signals.reload_is_wanted():
            self._reload()

    def _reload(self) -> None:
        """SIGHUP: take the values that can change at run time, and report what changed and what needs a restart."""
        parts = self._parts
        if parts is not None:  # else it waits for a cluster to join, and isn't READY
            systemd.reloading()
        try:
            new = configuration.load(self._path, os.environ)
            renewed = self._credentials is not None and self._credentials.renew()
        except MinkaError as error:
            log.error("configuration not reloaded", extra={"reason": error.message})
        else:
            changed, needs_restart = configuration.diff(self._config, new)
            self._config = configuration.apply_reload(self._config, new)
            logs.setup(self._config.log.level, self._config.log.format, self._config.node.id)
            if renewed:
                changed.append("tls: other certificates in the files")
                self._channels.renew()
                if parts is not None:
                    parts.payloads.renew()
                if self._serving is not None:
                    self._serving.renew_certificates()
            if parts is not None:
                parts.coordinator.reconfigure(settings.controller_settings(self._config))
            log.info("configuration reloaded", extra={"changed": changed, "needs_restart": needs_restart})
        if parts is not None:
            systemd.ready(f"Serving {self._config.grpc_address}")


def _failure(context: dict[str, Any]) -> MinkaError:
    error = context["exception"]
    return error if isinstance(error, MinkaError) else MinkaError(Code.INTERNAL, f"{context['message']}: {error!r}")


async def _raft_storage(log_db: LogDatabase, config: Config, own: Identity) -> RaftStorage:
    """The log of the Raft group. At a founder's first start it names the voters."""
    raft_storage = RaftStorage(log_db)
    voters = settings.bootstrap(config, own.cluster_id).voters
    if raft_storage.last_index() == 0 and (own.node_id, own.raft_id) in {(node.id, node.raft_id) for node in voters}:
        raft_storage.bootstrap(ConfState(voters=[node.raft_id for node in voters]))
        await log_db.sync()
    return raft_storage
