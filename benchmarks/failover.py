"""A leader is killed under load: how long until its partitions take writes again, beside Redis Cluster with the same
timeout.
"""

import asyncio
import binascii
import json
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final

import uvloop

import minka.aio
from benchmarks.cluster import KEYSPACE
from benchmarks.kv_worker import VALUE, key
from benchmarks.measure import MINKA, Goal, Report, Sample, main, percentile
from benchmarks.peers import REDIS, SLOTS, RedisCluster, missing
from benchmarks.processes import Group
from minka.control import Control
from minka.errors import MinkaError
from minka.hashing import murmur3
from minka.v1.cluster_pb2 import HashFunction, NodeState, PartitionState, PartitionTable
from minkactl.playground import LocalCluster
from minkad.config_schema import Membership

RUNS: Final = 20
QUICK_RUNS: Final = 3
PARTITIONS: Final = 24
LOADERS: Final = 32  # writes that other clients have under way all the time
KEYS: Final = 10_000
GOAL_MS: Final = 1000.0
# After which a silent node counts as failed; Redis's cluster-node-timeout means the same.
FAILURE_TIMEOUT_MS: Final = Membership().failure_timeout_ms

_WELL_TIMEOUT_S: Final = 60.0
_GIVE_UP_S: Final = 60.0
_WARM_UP_S: Final = 1.0
_GAP_S: Final = 0.002

Address = tuple[str, int]


def run(report: Report) -> None:
    """All figures."""
    report.absent |= {REDIS: reason} if (reason := missing(REDIS)) else {}
    runs = QUICK_RUNS if report.options.quick else RUNS
    report.notes.append(
        f"{runs} kills, one after the other, each third of the active controller. Three replicas, "
        f"two in sync at least, minkad's defaults; Redis: three masters with a replica each, cluster-node-timeout "
        f"{FAILURE_TIMEOUT_MS} ms, and an answer doesn't wait for the replica. {LOADERS} writes are under way all the "
        f"time. From SIGKILL to the first write of a key of a partition that the node led."
    )
    if REDIS not in report.absent:
        _add(report, REDIS, _redis(runs))
    with LocalCluster(3) as cluster:
        took, controllers, alarms = uvloop.run(_minka(cluster, runs))
    _add(report, MINKA, took)
    for name, kind in (
        ("of other nodes than the active controller, p50", False),
        ("of the active controller, p50", True),
    ):
        chosen = [seconds for seconds, it_was in zip(took, controllers, strict=True) if it_was is kind]
        if chosen:
            report.add(report.case(name, "ms"), MINKA, _sample(chosen, 50))
    report.add(report.case("nodes that FAILED though they lived", ""), MINKA, Sample(alarms))


def _add(report: Report, system: str, took: Sequence[float]) -> None:
    for name, percent in (("killed leader to the first write, p50", 50), ("… the longest", 100)):
        report.add(report.case(name, "ms", REDIS, Goal(at_most=GOAL_MS)), system, _sample(took, percent))


def _sample(took: Sequence[float], percent: float) -> Sample:
    ordered = sorted(took)
    value = percentile(ordered, percent)
    if value is None:
        raise RuntimeError("nothing was measured")
    return Sample(value * 1000, details={"count": len(ordered)})


# Minka


async def _minka(cluster: LocalCluster, runs: int) -> tuple[list[float], list[bool], int]:
    """Seconds of each run, whether it was the active controller that was killed, and how many others FAILED."""
    took, controllers, alarms = [], [], 0
    with Control(cluster.endpoints, timeout=10) as control, Group("load") as group:
        control.create_keyspace(KEYSPACE, PARTITIONS, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        _wait_well(control)
        talk = group.start_talking("load", _load_command(MINKA, list(cluster.endpoints)))
        assert talk.hear() == "connected", "the load says so first"
        async with minka.aio.Client(cluster.endpoints, keyspace=KEYSPACE) as client:
            for number in range(runs):
                table = await asyncio.to_thread(_wait_well, control)
                controller = control.status().coordinator.controller
                victim = _next_victim(table, number, controller)
                keys = _keys_led_by(table, victim)
                with suppress(MinkaError):  # only so that the client knows the way
                    await client.put_many(dict.fromkeys(keys, VALUE))
                await asyncio.sleep(_WARM_UP_S)
                controllers.append(controller == victim)
                cluster.kill(victim)
                took.append(await _first_write(client, keys, time.monotonic()))
                status = await asyncio.to_thread(control.status)
                alarms += sum(n.state == NodeState.NODE_STATE_FAILED and n.id != victim for n in status.table.nodes)
                await asyncio.to_thread(cluster.restart, victim)
    return took, controllers, alarms


async def _first_write(client: minka.aio.Client, keys: Sequence[bytes], killed: float) -> float:
    """Several callers try, each one write after the other. Seconds from the kill to the first that succeeds."""
    done = asyncio.Event()
    first = 0.0

    async def caller(name: bytes) -> None:
        nonlocal first
        while not done.is_set():
            with suppress(MinkaError):
                await client.put(name, VALUE, timeout=_GIVE_UP_S)
                first = first or time.monotonic()
                done.set()

    callers = [asyncio.create_task(caller(name)) for name in keys]
    async with asyncio.timeout(_GIVE_UP_S):
        await done.wait()
    for task in callers:
        task.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    return first - killed


def _wait_well(control: Control) -> PartitionTable:
    deadline = time.monotonic() + _WELL_TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(MinkaError):
            status = control.status()
            partitions = status.table.partitions
            online = all(p.state == PartitionState.PARTITION_STATE_ONLINE and len(p.isr) == 3 for p in partitions)
            if status.from_controller and online and partitions:
                return status.table
        time.sleep(_GAP_S)
    raise TimeoutError(f"not every replica is in sync after {_WELL_TIMEOUT_S:g} s")


def _next_victim(table: PartitionTable, number: int, controller: str) -> str:
    """A node that leads something; each third time the active controller, if it does."""
    leaders = sorted({partition.leader for partition in table.partitions} - {controller})
    leads = any(partition.leader == controller for partition in table.partitions)
    return controller if number % 3 == 2 and leads else leaders[number % len(leaders)]


def _keys_led_by(table: PartitionTable, node: str) -> list[bytes]:
    """A key in each of some partitions that the node leads."""
    slots = {partition.slot for partition in table.partitions if partition.leader == node}
    found: dict[int, bytes] = {}
    for number in range(KEYS):
        slot = murmur3(key(number)) % PARTITIONS
        if slot in slots:
            found.setdefault(slot, key(number))
    return list(found.values())[:4]


# Redis


def _redis(runs: int) -> list[float]:
    took = []
    with RedisCluster(3, replicas=1, node_timeout_ms=FAILURE_TIMEOUT_MS) as redis, Group("load") as group:
        redis.wait_replicated()
        talk = group.start_talking("load", _load_command(REDIS, [f"{host}:{port}" for host, port in redis.addresses]))
        assert talk.hear() == "connected", "the load says so first"
        for number in range(runs):
            redis.wait_replicated()
            heirs = {master: replica for replica, master in redis.replicas().items()}
            victim = sorted(heirs)[number % len(heirs)]
            name = redis.key_of(victim)
            time.sleep(_WARM_UP_S)
            killed = time.monotonic()
            redis.kill(victim)
            took.append(_until_set(heirs[victim], name) - killed)
            redis.restart(victim)
    return took


def _until_set(heir: Address, name: bytes) -> float:
    """Ask the replica, which has to become the master, until it takes the write; when it did."""
    command = _set(name)
    deadline = time.monotonic() + _GIVE_UP_S
    with socket.create_connection(heir, timeout=_GIVE_UP_S) as connection:
        while time.monotonic() < deadline:
            connection.sendall(command)
            if connection.recv(1024).startswith(b"+OK"):
                return time.monotonic()
            time.sleep(_GAP_S)
    raise TimeoutError(f"the replica on port {heir[1]} did not take over within {_GIVE_UP_S:g} s")


def _set(name: bytes) -> bytes:
    return b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(VALUE), VALUE)


# The load: a process of its own, which takes errors as they come


def _load_command(system: str, endpoints: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "benchmarks.failover", "--load", system, json.dumps(list(endpoints))]


async def _load(system: str, endpoints: Sequence[str]) -> None:
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        if system == MINKA:
            client = await stack.enter_async_context(minka.aio.Client(endpoints, keyspace=KEYSPACE))
            for number in range(LOADERS):
                group.create_task(_load_minka(client, number))
        else:
            owners: dict[int, str] = {}
            for number in range(LOADERS):
                group.create_task(_load_redis(endpoints, number, owners))
        sys.stdout.write(json.dumps("connected") + "\n")
        sys.stdout.flush()


async def _load_minka(client: minka.aio.Client, first: int) -> None:
    number = first
    while True:
        with suppress(MinkaError):
            await client.put(key(number % KEYS), VALUE)
        number += LOADERS


async def _load_redis(endpoints: Sequence[str], first: int, owners: dict[int, str]) -> None:
    """To the owner of each key, as far as known: whom the last redirection named."""
    number = first
    connections: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
    while True:
        slot = binascii.crc_hqx(key(number % KEYS), 0) % SLOTS
        endpoint = owners.get(slot, endpoints[number % len(endpoints)])
        try:
            if endpoint not in connections:
                host, _, port = endpoint.rpartition(":")
                connections[endpoint] = await asyncio.open_connection(host, int(port))
            reader, writer = connections[endpoint]
            writer.write(_set(key(number % KEYS)))
            answer = await reader.readuntil(b"\r\n")
        except (OSError, EOFError):
            connections.pop(endpoint, None)
            owners.pop(slot, None)
            await asyncio.sleep(0.02)
            continue
        if answer.startswith(b"-MOVED "):
            owners[slot] = answer.split()[2].decode()
        elif answer.startswith(b"+OK"):
            owners[slot] = endpoint
            number += LOADERS
        else:
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        uvloop.run(_load(sys.argv[2], json.loads(sys.argv[3])))
    else:
        main("failover", "A leader is killed under load: how long until its partitions take writes again.", run)
