"""The synchronous client: the asyncio one on a thread of its own."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import minka
from minka.client import Client
from minka.errors import MinkaError

Make = Callable[..., Any]


@pytest.fixture
def cluster(data_cluster: Make) -> Iterator[Any]:
    """A cluster of two data nodes, served by another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Any:
        return await data_cluster("athens", "byzantium").__aenter__()

    nodes = asyncio.run_coroutine_threadsafe(start(), loop).result()
    yield nodes
    asyncio.run_coroutine_threadsafe(nodes.__aexit__(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def _client_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("minka client")]


def test_every_operation(cluster: Any) -> None:
    with Client(cluster.endpoints, keyspace="flights") as client:
        client.put("UA1545", b"EWR-IAH")
        assert client.get(b"UA1545") == b"EWR-IAH"
        client.delete("UA1545")
        assert client.get("UA1545") is None
        flights = client.keyspace("flights")
        flights.put_many({"a": b"1", "b": b"2"})
        assert flights.get_many(["a", "b", "c"]) == {"a": b"1", "b": b"2"}
        flights.delete_many(["a"])
        assert client.get_many([b"a", b"b"]) == {b"b": b"2"}
    assert _client_threads() == []


def test_errors_reach_the_caller(cluster: Any) -> None:
    with Client(cluster.endpoints) as client:
        with pytest.raises(MinkaError, match="INVALID_ARGUMENT: no keyspace"):
            client.get("key")
        with pytest.raises(MinkaError, match="UNKNOWN_KEYSPACE"):
            client.keyspace("trains").get("key")
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT: endpoint 'athens'"):
        Client(["athens"])
    assert _client_threads() == []


def test_many_threads_share_a_client(cluster: Any) -> None:
    with Client(cluster.endpoints, keyspace="flights") as client, ThreadPoolExecutor(8) as pool:

        def work(number: int) -> bytes | None:
            client.put(f"key-{number}", b"%d" % number)
            return client.get(f"key-{number}")

        assert list(pool.map(work, range(200))) == [b"%d" % number for number in range(200)]


def test_a_client_that_is_dropped_ends_its_thread(cluster: Any) -> None:
    client = Client(cluster.endpoints, keyspace="flights")
    client.put("key", b"v")
    assert len(_client_threads()) == 1
    del client
    gc.collect()
    assert _client_threads() == []


def test_a_closed_client_says_so(cluster: Any) -> None:
    client = Client(cluster.endpoints, keyspace="flights")
    client.put("key", b"v")
    client.close()
    client.close()
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT: the client is closed"):
        client.get("key")


def test_closing_ends_the_calls_of_other_threads(cluster: Any) -> None:
    client = Client(cluster.endpoints, keyspace="flights", timeout=30)
    client.put("key", b"v")
    frames = sum(len(node.frames) for node in cluster.nodes.values())
    for node in cluster.nodes.values():
        node.go_on.clear()
    with ThreadPoolExecutor(8) as pool:
        reads = [pool.submit(client.get, f"key-{n}") for n in range(8)]
        deadline = time.monotonic() + 10
        while sum(len(node.frames) for node in cluster.nodes.values()) == frames and time.monotonic() < deadline:
            time.sleep(0.002)
        client.close()
        for read in reads:
            with pytest.raises(MinkaError, match=r"closed"):
                read.result(timeout=10)


def test_a_program_that_never_closes_its_client_ends_quietly(cluster: Any) -> None:
    script = f"import minka; c = minka.Client({cluster.endpoints!r}, keyspace='flights'); c.put('key', b'v')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout + done.stderr == ""
    assert cluster.data == {b"key": b"v"}


def test_names_are_loaded_when_they_are_used() -> None:
    script = "import sys, minka; print('grpc' in sys.modules); minka.aio.Client; print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue\n"
    assert minka.Client is Client
    with pytest.raises(AttributeError, match="'minka' has no attribute 'Clients'"):
        _ = minka.Clients
