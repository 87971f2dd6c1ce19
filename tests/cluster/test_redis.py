"""Redis clients on real daemons: redis-py, plain and for clusters, and redis-cli."""

import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count, product
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError
from redis.retry import Retry

from minka import Client
from minka.admin.control import Control
from minka.cluster.hashing import crc16
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.certificates import make_certificates, section
from tests.cluster.cluster import QUICK, eventually, wait_ended, wait_settled
from tests.programs import program

# redis-py says that some commands are deprecated, but Redis still has them.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")

NODES = 3
MIB = 1024 * 1024
ONCE = Retry(ConstantBackoff(0), 0)  # otherwise redis-py repeats refused commands, for seconds
Plain = redis.Redis


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three nodes and three keyspaces: by Redis Cluster's hash, by another hash, and by ranges."""
    with LocalCluster(NODES, config=QUICK) as made:
        make_keyspaces(made)
        yield made


def make_keyspaces(cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control:
        wait_settled(control, live=NODES)
        control.create_keyspace("default", 12, HashFunction.HASH_FUNCTION_CRC16, replicas=3)
        control.create_keyspace("hashed", 6, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
        unspecified = HashFunction.HASH_FUNCTION_UNSPECIFIED
        control.create_keyspace("ranged", 0, unspecified, replicas=1, split_points=[b"g", b"p"])
        wait_settled(control, live=NODES)


def address(cluster: LocalCluster, name: str = "athens") -> tuple[str, int]:
    host, _, port = cluster.node(name).data_address.rpartition(":")
    return host, int(port)


def plain(cluster: LocalCluster, keyspace: str, name: str = "athens", protocol: int = 2) -> Plain:
    """Connect a client that isn't a cluster client. Its user name chooses the keyspace."""
    host, port = address(cluster, name)
    return redis.Redis(host, port, username=keyspace, password="", protocol=protocol, socket_timeout=10)


def clustered(cluster: LocalCluster, **options: object) -> RedisCluster:
    host, port = address(cluster)
    retry = Retry(ConstantBackoff(0.1), 100)
    return RedisCluster(host, port, retry=retry, socket_timeout=10, **options)  # type: ignore[arg-type]


KINDS: dict[str, Callable[[LocalCluster], Plain | RedisCluster]] = {
    "cluster": clustered,
    "cluster, RESP 3": lambda cluster: clustered(cluster, protocol=3),
    "by hash": lambda cluster: plain(cluster, "hashed"),
    "by hash, RESP 3": lambda cluster: plain(cluster, "hashed", "cyrene", protocol=3),
    "by ranges": lambda cluster: plain(cluster, "ranged", "byzantium"),
}


@pytest.fixture(params=KINDS)
def client(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Plain | RedisCluster]:
    """A client of each kind for each kind of keyspace."""
    with KINDS[request.param](cluster) as made:
        yield made


def said(client: Plain, *words: object) -> Any:
    """Send a command of exactly these words (redis-py leaves them unchanged); returns the answer."""
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


_numbers = count()


def fresh(prefix: str = "k") -> str:
    """Return a key that no other test uses. The keys begin with different letters, so they are in different ranges."""
    number = next(_numbers)
    return f"{'anz'[number % 3]}{prefix}-{number}"


def test_values(client: Plain) -> None:
    key = fresh()
    assert client.get(key) is None
    assert client.set(key, b"\x00\r\nany bytes") is True
    assert client.get(key) == b"\x00\r\nany bytes"
    assert client.strlen(key) == 12
    assert client.getrange(key, 3, -7) == b"any"
    assert client.append(key, "!") == 13
    assert client.setrange(key, 3, "ANY") == 13
    assert client.get(key) == b"\x00\r\nANY bytes!"
    assert client.exists(key) == 1
    assert client.type(key) == b"string"
    assert client.getset(key, "new") == b"\x00\r\nANY bytes!"
    assert client.getdel(key) == b"new"
    assert client.getdel(key) is None
    assert client.type(key) == b"none"
    assert client.delete(key) == 0
    client.set(key, "")
    assert client.get(key) == b""
    assert client.delete(key) == 1


def test_conditions(client: Plain) -> None:
    key = fresh()
    assert client.set(key, "1", xx=True) is None
    assert client.set(key, "1", nx=True) is True
    assert client.set(key, "2", nx=True) is None
    assert client.setnx(key, "2") is False
    assert client.set(key, "2", xx=True, get=True) == b"1"
    assert client.set(key, "3", nx=True, get=True) == b"2"
    assert said(client, "SET", key, "3", "NX", "NX") is None, "an option may come twice"
    assert said(client, "SET", key, "2", "EX", 50, "XX", "EX", 60) is True
    assert client.ttl(key) > 50
    for wrong in (("NX", "XX"), ("EX", 5, "PX", 5), ("KEEPTTL", "EX", 5), ("EX",), ("EX", 0, "AND")):
        with pytest.raises(ResponseError, match="syntax error"):
            said(client, "SET", key, "3", *wrong)
    assert client.get(key) == b"2"


def test_numbers(client: Plain) -> None:
    key = fresh()
    assert client.incr(key) == 1
    assert client.incrby(key, 41) == 42
    assert client.decr(key) == 41
    assert client.decrby(key, 50) == -9
    assert client.get(key) == b"-9"
    assert client.incrbyfloat(key, 0.5) == -8.5
    with pytest.raises(ResponseError, match="value is not an integer or out of range"):
        client.incr(key)
    client.set(key, 2**63 - 1)
    with pytest.raises(ResponseError, match="increment or decrement would overflow"):
        client.incr(key)
    with pytest.raises(ResponseError, match="not an integer or out of range"):
        client.execute_command("INCRBY", key, "1.5")  # type: ignore[no-untyped-call]
    client.set(key, "text")
    with pytest.raises(ResponseError, match="value is not a valid float"):
        client.incrbyfloat(key, 1)


def test_many_increments_at_once_are_all_counted(cluster: LocalCluster) -> None:
    key = fresh()

    def increment(name: str) -> None:
        with plain(cluster, "hashed", name) as own:
            for _ in range(50):
                own.incr(key)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(increment, list(cluster.nodes) * 2))
    with plain(cluster, "hashed") as reader:
        assert reader.get(key) == b"300"


def test_expiry(client: Plain) -> None:
    key = fresh()
    assert client.ttl(key) == -2
    client.set(key, "v")
    assert client.ttl(key) == -1
    assert client.expire(key, 100) is True
    assert 90 < client.ttl(key) <= 100
    assert 90_000 < client.pttl(key) <= 100_000
    assert client.expire(key, 50, gt=True) is False
    assert client.expire(key, 50, nx=True) is False
    assert client.expire(key, 50, lt=True) is True
    client.set(key, "w", keepttl=True)
    assert 40 < client.ttl(key) <= 50
    assert client.expireat(key, 4_000_000_000) is True
    assert client.expiretime(key) == 4_000_000_000
    assert client.pexpiretime(key) == 4_000_000_000_000
    assert client.persist(key) is True
    assert client.persist(key) is False
    assert client.ttl(key) == -1
    assert client.getex(key, ex=100) == b"w"
    assert client.ttl(key) > 0
    assert client.getex(key, persist=True) == b"w"
    assert client.ttl(key) == -1
    client.setex(key, 100, "x")
    client.set(key, "y")
    assert client.ttl(key) == -1, "a plain SET removes the expiry"
    assert client.expire(key, -1) is True
    assert client.exists(key) == 0
    client.psetex(key, 30, "z")
    eventually("the key has expired", lambda: client.get(key) is None)
    assert client.exists(key) == 0
    with pytest.raises(ResponseError, match="invalid expire time in 'setex' command"):
        client.setex(key, 0, "v")


def test_expiry_with_two_conditions(client: Plain) -> None:
    key = fresh()
    client.set(key, "v")
    assert client.expire(key, 50, xx=True, lt=True) is False, "it doesn't expire"
    assert client.expire(key, 50) is True
    assert client.expire(key, 60, xx=True, lt=True) is False
    assert client.expire(key, 40, xx=True, lt=True) is True
    assert client.expire(key, 60, xx=True, gt=True) is True
    for options, text in (({"nx": True, "xx": True}, "NX and XX, GT or LT"), ({"gt": True, "lt": True}, "GT and LT")):
        with pytest.raises(ResponseError, match=f"{text} options at the same time are not compatible"):
            client.expire(key, 50, **options)
    assert 50 < client.ttl(key) <= 60


def test_times_that_have_passed_and_the_latest_ones(client: Plain) -> None:
    key, last = fresh(), 2**63 - 1
    for command, time in product(("EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"), (0, -1, -(last // 1000))):
        client.set(key, "v")
        assert said(client, command, key, time) == 1
        assert client.exists(key) == 0
        assert said(client, command, key, time) == 0
    client.set(key, "v")
    assert client.pexpireat(key, last) is True
    assert client.pexpiretime(key) == last
    for command, time in (
        ("EXPIREAT", last // 1000 + 1), ("EXPIRE", -(last // 1000) - 1), ("PEXPIRE", last), ("EXPIRE", last // 1000),
    ):  # fmt: skip
        with pytest.raises(ResponseError, match=f"invalid expire time in '{command.lower()}' command"):
            said(client, command, key, time)
    for option, time in (("EX", 0), ("PXAT", -1), ("EX", last // 1000), ("PX", last)):
        with pytest.raises(ResponseError, match="invalid expire time in 'set' command"):
            said(client, "SET", key, "w", option, time)
        with pytest.raises(ResponseError, match="invalid expire time in 'getex' command"):
            said(client, "GETEX", key, option, time)
    assert client.get(key) == b"v"
    assert said(client, "GETEX", fresh(), "EX", 0) is None, "Redis, too, looks for the key first"


def test_several_keys(client: Plain) -> None:
    tag = fresh("{tag}")
    one, two, three = (f"{tag}{number}" for number in range(3))
    assert client.mset({one: "1", two: "2"}) is True
    assert client.mget([one, two, three, one]) == [b"1", b"2", None, b"1"]
    assert client.exists(one, one, two, three) == 3
    assert client.delete(one, three) == 1
    assert client.unlink(one, two, three) == 1


def test_all_or_none(cluster: LocalCluster) -> None:
    one, two = "{together}1", "{together}2"
    with clustered(cluster) as client:
        client.set(one, "1")
        assert client.msetnx({two: "2", one: "x"}) is False
        assert client.get(two) is None
        client.delete(one)
        assert client.msetnx({two: "2", one: "x"}) is True
        assert client.mget([one, two]) == [b"x", b"2"]
    with plain(cluster, "ranged") as ranges, pytest.raises(ResponseError, match="several partitions"):
        ranges.msetnx({"a": "1", "z": "2"})


def test_a_pipeline_is_answered_in_order_and_sees_its_own_writes(client: Plain) -> None:
    tag = fresh("{pipe}")
    with client.pipeline(transaction=False) as pipeline:
        for number in range(200):
            pipeline.set(f"{tag}{number % 7}", number)
            pipeline.get(f"{tag}{number % 7}")
            pipeline.incr(f"{tag}n")
        answers = pipeline.execute()
    assert answers[1::3] == [b"%d" % number for number in range(200)]
    assert answers[2::3] == list(range(1, 201))
    with client.pipeline(transaction=False) as pipeline:
        for number in range(6):
            pipeline.set(f"{tag}0", number)
            pipeline.getex(f"{tag}0")
        assert pipeline.execute()[1::2] == [b"%d" % number for number in range(6)]


def test_scan_gives_every_key_once(client: Plain) -> None:
    prefix = fresh("scan")
    keys = {f"{letter}{prefix}-{number}".encode() for letter in "akz" for number in range(40)}
    for key in keys:
        client.set(key, "v")
    found = list(client.scan_iter(match=f"?{prefix}-*", count=7))
    assert len(found) == len(set(found))
    assert set(found) == keys
    assert list(client.scan_iter(match=f"?{prefix}-*", _type="hash")) == []


def test_a_cursor_of_another_node_is_understood(cluster: LocalCluster) -> None:
    with plain(cluster, "hashed", "athens") as here, plain(cluster, "hashed", "cyrene") as there:
        prefix = fresh("cursor")
        keys = {f"{prefix}-{number}".encode() for number in range(100)}
        here.mset(dict.fromkeys(keys, b"v"))
        found: list[bytes] = []
        cursor, clients = 0, [here, there]
        while True:
            cursor, some = clients[0].scan(cursor, match=f"{prefix}-*", count=5)
            found += some
            clients.reverse()
            if not cursor:
                break
        assert sorted(found) == sorted(keys)


def test_slots_are_redis_clusters(cluster: LocalCluster) -> None:
    host, port = address(cluster)
    with redis.Redis(host, port) as one:
        with clustered(cluster) as client:
            assert {(node.host, node.port) for node in client.get_primaries()} == {
                address(cluster, name) for name in cluster.nodes
            }
            assert len(client.nodes_manager.slots_cache) == 16_384
        assert one.execute_command("CLUSTER KEYSLOT", "a{user}b") == crc16(b"user") == crc16(b"a{user}b")
        assert one.execute_command("CLUSTER INFO")["cluster_state"] == "ok"
        assert len(one.execute_command("CLUSTER NODES")) == NODES
        assert len(one.execute_command("CLUSTER SHARDS")) == NODES
        with pytest.raises(ResponseError, match="same slot"):
            one.execute_command("MGET", "a", "b")


def test_keys_of_a_slot(cluster: LocalCluster) -> None:
    with clustered(cluster) as client:
        tag = fresh("slot")
        slot = crc16(tag.encode())
        keys = [f"{{{tag}}}{number}" for number in range(5)]
        client.mset(dict.fromkeys(keys, "v"))
        client.set(next(key for key in map(str, count()) if crc16(key.encode()) == slot ^ 1), "of the same partition")
        assert client.cluster_countkeysinslot(slot) == 5
        assert client.cluster_get_keys_in_slot(slot, 3) == keys[:3]
        client.delete(*keys)
        assert client.cluster_countkeysinslot(slot) == 0
    with plain(cluster, "hashed") as one, pytest.raises(ResponseError, match="cluster support disabled"):
        said(one, "CLUSTER COUNTKEYSINSLOT", 1)


def led_by(cluster: LocalCluster, name: str) -> Iterator[str]:
    """Return keys of the keyspace `default` whose partitions this node leads."""
    with Control(cluster.endpoints) as control:
        table = control.table()
    keyspace = next(one for one in table.keyspaces if one.name == "default")
    leaders = {row.slot: row.leader for row in table.partitions if row.keyspace_id == keyspace.id}
    for number in count():
        key = f"led-{number}"
        if leaders[crc16(key.encode()) * keyspace.partition_count // 16_384] == name:
            yield key


def test_moved_says_where_the_key_is(cluster: LocalCluster) -> None:
    key = next(led_by(cluster, "byzantium"))
    where = ":".join(map(str, address(cluster, "byzantium")))
    with Talking(address(cluster, "athens")) as say:
        for command in (f"GET {key}", f"SET {key} v", f"INCR {key}", f"TTL {key}", f"MSET {key} v"):
            assert say(command) == f"-MOVED {crc16(key.encode())} {where}\r\n".encode()


def test_replicas_answer_with_readonly(cluster: LocalCluster) -> None:
    key = next(led_by(cluster, "byzantium"))
    with clustered(cluster) as writer:
        writer.set(key, "v")
    with Talking(address(cluster, "athens")) as say:
        assert say("READONLY") == b"+OK\r\n"
        eventually("the replica has it", lambda: say(f"GET {key}") == b"$1\r\nv\r\n")
        assert say(f"SET {key} w").startswith(b"-MOVED ")
        assert say("READWRITE") == b"+OK\r\n"
        assert say(f"GET {key}").startswith(b"-MOVED ")


class Talking:
    """Opens a connection. The `with` block gets a function, which sends an inline command and returns the answer."""

    def __init__(self, where: tuple[str, int]) -> None:
        self._socket = socket.create_connection(where, timeout=10)

    def __enter__(self) -> Callable[[str], bytes]:
        return self._say

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _say(self, command: str) -> bytes:
        self._socket.sendall(command.encode() + b"\r\n")
        return self._socket.recv(65_536)


def test_minkas_clients_see_the_same_values(cluster: LocalCluster) -> None:
    key = fresh()
    with Client(cluster.endpoints, keyspace="default") as own, clustered(cluster) as other:
        other.set(key, "from redis")
        assert own.get(key) == b"from redis"
        own.put(key, b"from minka")
        assert other.get(key) == b"from minka"


def test_keyspaces_are_users(cluster: LocalCluster) -> None:
    host, port = address(cluster)
    with redis.Redis(host, port, retry=ONCE) as one:
        with pytest.raises(redis.AuthenticationError, match="create it"):
            one.execute_command("AUTH", "nowhere", "")
        with pytest.raises(redis.AuthenticationError):
            one.execute_command("AUTH", "_duties", "")
        one.execute_command("AUTH", "hashed", "any password")
        assert one.execute_command("CLUSTER INFO") == {"cluster_enabled": "0"}


def test_the_connection(cluster: LocalCluster) -> None:
    host, port = address(cluster)
    with redis.Redis(host, port, protocol=3, client_name="me") as one:
        assert one.ping() is True
        assert one.echo("x") == b"x"
        assert one.client_getname() in (b"me", "me")
        assert one.client_id() > 0
        assert any(row["name"] == "me" and row["resp"] == "3" for row in one.client_list())
        assert one.config_get("appendfsync") == {"appendfsync": "always"}
        assert one.info("server")["server_name"] == "minka"
        assert one.command_count() == len(one.command_list())
        assert one.command()["get"]["flags"] == {"readonly", "fast"}
        assert one.command_getkeys("MSET", "a", "1", "b", "2") == [b"a", b"b"]
        flags = [[b"a", [b"RW", b"access", b"update"]]]
        assert one.command_getkeysandflags("SET", "a", "1", "GET") == flags
        for wrong, text in (("PING x", "no key arguments"), ("GET a b", "number of arguments"), ("LPUSH a", "command")):
            for command in ("GETKEYS", "GETKEYSANDFLAGS"):
                with pytest.raises(ResponseError, match=text):
                    said(one, "COMMAND", command, *wrong.split())
        assert one.command_list(pattern="*setex") == [b"setex", b"psetex"]
        assert b"get" in one.command_list(category="read")
        assert b"set" not in one.command_list(category="read")
        assert one.command_list(module="any") == []
        with pytest.raises(ResponseError, match="syntax error"):
            said(one, "COMMAND LIST", "FILTERBY", "NAME", "x")
        assert [row["id"] for row in one.client_list(client_id=[one.client_id(), 10**9])] == [str(one.client_id())]
        assert one.client_list(_type="pubsub") == []
        for words in (("ID", "x"), ("TYPE", "x"), ("x",)):
            with pytest.raises(ResponseError, match=r"Invalid client ID|Unknown client type|syntax error"):
                said(one, "CLIENT LIST", *words)
        one.set(next(led_by(cluster, "athens")), "v")
        assert one.info("keyspace") == {"db0": {"keys": one.dbsize()}}
        with pytest.raises(ResponseError, match="unknown command 'LPUSH'"):
            one.lpush("list", 1)
        with pytest.raises(ResponseError, match="unsupported protocol version"):
            one.execute_command("HELLO", 4)
        with pytest.raises(ResponseError, match="wrong number of arguments for 'get' command"):
            one.execute_command("GET")
        assert one.execute_command("SELECT", 0) in (b"OK", True)
        with pytest.raises(ResponseError):
            one.execute_command("SELECT", 1)


@pytest.mark.parametrize("client", ["cluster", "by ranges"], indirect=True)
def test_a_large_value_and_one_that_is_too_large(client: Plain) -> None:
    key, value = fresh(), b"x" * (16 * MIB)
    client.set(key, value)
    assert client.get(key) == value
    with pytest.raises(ResponseError, match="maximum allowed size"):
        client.set(key, value + b"x")
    client.delete(key)


def test_redis_cli(cluster: LocalCluster) -> None:
    redis_cli = program("redis-cli")
    host, port = address(cluster)

    def ask(*words: str) -> str:
        command = [redis_cli, "-c", "-h", host, "-p", str(port), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout

    for key in ("one", "two", "three", "four"):
        assert ask("SET", key, f"v-{key}") == "OK\n"
        assert ask("GET", key) == f"v-{key}\n"
    check = [redis_cli, "--cluster", "check", f"{host}:{port}"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=20, check=False)
    assert "All 16384 slots covered" in done.stdout, done.stdout + done.stderr


def test_a_split_fails_no_pipeline(cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control:
        unspecified = HashFunction.HASH_FUNCTION_UNSPECIFIED
        control.create_keyspace("splitting", 0, unspecified, replicas=3, split_points=[])
        wait_settled(control, live=NODES)
        stop = Event()
        with ThreadPoolExecutor(3) as pool:
            work = [pool.submit(counted, cluster, name, stop) for name in cluster.nodes]
            for split_at in (b"key-5", b"key-2", b"key-8"):
                operation = control.split("splitting", [split_at], "test")
                assert operation is not None
                wait_ended(control, operation.id)
            stop.set()
            rounds = sum(one.result() for one in work)
        with plain(cluster, "splitting") as client:
            assert client.mget([f"key-{number}" for number in range(10)]) == [b"%d" % rounds] * 10
            assert sorted(client.scan_iter(count=3)) == sorted(
                b"%s-%d" % (kind, n) for kind in (b"key", b"set") for n in range(10)
            )


def counted(cluster: LocalCluster, name: str, stop: Event) -> int:
    """Send pipelines until `stop`. Each pipeline increments ten keys, and sets ten other keys. Returns the number of
    pipelines."""
    rounds = 0
    with plain(cluster, "splitting", name) as client:
        while not stop.is_set() or rounds < 3:
            with client.pipeline(transaction=False) as pipeline:
                for number in range(10):
                    pipeline.set(f"set-{number}", rounds)
                for number in range(10):
                    pipeline.incr(f"key-{number}")
                answers = pipeline.execute()
            assert answers[:10] == [True] * 10
            rounds += 1
    return rounds


def test_a_cluster_client_goes_on_after_a_node_was_killed() -> None:
    with LocalCluster(NODES, config=QUICK) as cluster:
        make_keyspaces(cluster)
        keys = [f"key-{number}" for number in range(60)]
        with Control(cluster.endpoints) as control:
            control.create_keyspace("copied", 6, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
            wait_settled(control, live=NODES)
        with plain(cluster, "copied") as client:
            client.mset({key: key for key in keys})
        with clustered(cluster) as client:
            for key in keys:
                client.set(key, key)
            cluster.kill("cyrene")
            for key in keys:
                assert eventually(key, lambda key=key: patient(client, key)) == key.encode()  # type: ignore[misc]
            for key in keys:
                assert client.incr(f"n-{key}") == 1
        with plain(cluster, "copied") as client:  # other nodes lead the dead node's partitions
            for key in keys:
                assert client.get(key) == key.encode()


def patient(client: RedisCluster, key: str) -> bytes | None:
    """Read the key; returns None if the client finds no node that serves the key now."""
    try:
        found = client.get(key)
    except (redis.ConnectionError, redis.exceptions.TryAgainError, redis.exceptions.ClusterDownError):
        return None
    assert isinstance(found, bytes)
    return found


def test_clients_that_take_no_answers_do_not_fill_the_memory() -> None:
    limit_mib, key, value = 128, "{large}0", b"x" * (16 * MIB)
    with (
        LocalCluster(["athens"], config={**QUICK, "clients": {"memory_mib": limit_mib}}) as cluster,
        ExitStack() as stack,
    ):
        with Control(cluster.endpoints) as control:
            control.create_keyspace("default", 2, HashFunction.HASH_FUNCTION_CRC16, replicas=1)
            wait_settled(control, live=1)
        host, port = address(cluster)
        with redis.Redis(host, port, socket_timeout=20) as client:
            client.set(key, value)
            for _ in range(30):
                greedy = stack.enter_context(socket.create_connection((host, port), timeout=10))
                greedy.sendall(b"GET %b\r\n" % key.encode() * 20)
            for number in range(50):
                client.set(f"small-{number}", number)
                assert client.get(f"small-{number}") == b"%d" % number
            assert client.get(key) == value
        process = cluster.node("athens").process
        assert process is not None
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        assert pages * 4096 < 3 * limit_mib * MIB


def test_with_tls(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path / "own")
    files: dict[str, Any] = {"ssl_ca_certs": str(tls.ca), "ssl_certfile": str(tls.cert), "ssl_keyfile": str(tls.key)}
    with LocalCluster(NODES, config=QUICK | section(tls)) as cluster:
        with Control(cluster.endpoints, tls=tls) as control:
            wait_settled(control, live=NODES)
            control.create_keyspace("default", 6, HashFunction.HASH_FUNCTION_CRC16, replicas=3)
            control.create_keyspace("hashed", 6, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
            wait_settled(control, live=NODES)
        host, port = address(cluster)
        with RedisCluster(host, port, ssl=True, **files) as client:
            for number in range(20):
                client.set(f"key-{number}", number)
                assert client.get(f"key-{number}") == b"%d" % number
        with redis.Redis(host, port, username="hashed", password="", ssl=True, **files) as passed_on:
            for number in range(20):
                assert passed_on.incr(f"n-{number}") == 1
        with pytest.raises(redis.ConnectionError), redis.Redis(host, port, socket_timeout=1, retry=ONCE) as without:
            without.ping()
