"""The synchronous client. It runs the asyncio client on a thread that all synchronous clients share."""

import asyncio
import contextlib
import gc
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import minka
import minka.duties
from minka import contexts
from minka.admin import Admin
from minka.client import Client
from minka.engine import loops
from minka.errors import InvalidArgument, MinkaError
from tests.unit.client.asking import BadCalls


@pytest.mark.parametrize("make", [minka.connect, lambda keyspace: minka.Client(keyspace=keyspace)])
def test_a_client_without_endpoints_uses_the_cluster_of_the_environment(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    monkeypatch.setenv("MINKA_ENDPOINTS", ",".join(cluster.endpoints))
    with make("flights") as client:
        client.put("a", b"1")
        assert client.get("a") == b"1"


def test_the_context_of_a_client_can_be_named(cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("MINKA_ENDPOINTS", "127.0.0.1:1")
    contexts.save(contexts.Config({"test": contexts.Context(tuple(cluster.endpoints))}))
    with minka.connect("flights", context="test") as client:
        assert client.get("a") is None
    with pytest.raises(MinkaError, match="UNKNOWN_CONTEXT"):
        minka.connect("flights", context="prod")


class Feeds(minka.duties.Delegate):
    def attach(self, duties: object) -> None: ...
    def detach(self, duties: object) -> None: ...


NAMED: list[Callable[..., Any]] = [
    minka.Client,
    minka.AsyncClient,
    Admin,
    minka.duties.Client,
    minka.duties.AsyncClient,
    partial(minka.duties.Shard, Feeds(), {"feeds": None}),
]


@pytest.mark.parametrize("make", NAMED)
def test_each_client_takes_the_name_of_a_context(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: Callable[..., Any]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    contexts.save(contexts.Config({"test": contexts.Context(("127.0.0.1:1",))}))
    made = make(context="test")
    if hasattr(made, "close") and not asyncio.iscoroutinefunction(made.close):
        made.close()
    with pytest.raises(MinkaError, match="UNKNOWN_CONTEXT: no context 'prod'"):
        make(context="prod")
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT: the context's name is empty"):
        make(context="")
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT: give either endpoints or the context 'test'"):
        make(endpoints=["127.0.0.1:1"], context="test")


def _client_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("minka client")]


def _tasks_end() -> bool:
    """Wait until all tasks of clients have ended, for at most 10 s. Returns True, so that tests can assert it."""
    assert loops._shared is not None
    deadline = time.monotonic() + 10
    while left := {task.get_name() for task in asyncio.all_tasks(loops._shared.loop)}:
        assert time.monotonic() < deadline, left
        time.sleep(0.002)
    return True


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
    assert _tasks_end()


def test_errors_reach_the_caller(cluster: Any) -> None:
    with Client(cluster.endpoints) as client:
        with pytest.raises(MinkaError, match="INVALID_ARGUMENT: no keyspace: make the client with"):
            client.get("key")
        with pytest.raises(MinkaError, match="UNKNOWN_KEYSPACE"):
            client.keyspace("trains").get("key")
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT: endpoint 'athens'"):
        Client(["athens"])
    assert _tasks_end()


def test_invalid_arguments_are_refused(cluster: Any, bad_calls: BadCalls) -> None:
    with Client(cluster.endpoints, keyspace="flights") as client:
        for call, why in bad_calls:
            with pytest.raises(InvalidArgument, match=why):
                call(client)
        with pytest.raises(InvalidArgument, match="the name of a keyspace is int, not str"):
            client.keyspace(5)  # type: ignore[arg-type]  # the mistake under test
        with pytest.raises(InvalidArgument, match="the name of a keyspace must have 1 to 63 characters of a-z"):
            Client(cluster.endpoints, keyspace="k" * 64)
    assert _tasks_end()


def test_many_threads_share_a_client(cluster: Any) -> None:
    with Client(cluster.endpoints, keyspace="flights") as client, ThreadPoolExecutor(8) as pool:

        def work(number: int) -> bytes | None:
            client.put(f"key-{number}", b"%d" % number)
            return client.get(f"key-{number}")

        assert list(pool.map(work, range(200))) == [b"%d" % number for number in range(200)]


def test_a_garbage_collected_client_ends_its_tasks(cluster: Any) -> None:
    client = Client(cluster.endpoints, keyspace="flights")
    client.put("key", b"v")
    del client
    gc.collect()
    assert _tasks_end()


@contextlib.contextmanager
def _busy_loop() -> Iterator[Callable[[], bool]]:
    """The clients' loop does nothing until the end of the block, but for at most 5 s. The function that is yielded ends
    that, and returns True if the loop has waited for it.
    """
    release, released = threading.Event(), Future[bool]()

    def end() -> bool:
        release.set()
        return released.result(10)

    assert loops._shared is not None
    loops._shared.loop.call_soon_threadsafe(lambda: released.set_result(release.wait(5)))
    try:
        yield end
    finally:
        end()


async def test_a_client_that_is_garbage_on_the_thread_of_a_loop_does_not_block_it(cluster: Any) -> None:
    """Perhaps gRPC has woken this loop to handle the events of all loops: the client couldn't be closed meanwhile."""
    clients: list[Client] = []  # only this list refers to the client: else the executor's thread may free it

    def use_a_client() -> None:
        clients.append(Client(cluster.endpoints, keyspace="flights"))
        clients[0].put("key", b"v")

    await asyncio.to_thread(use_a_client)
    with _busy_loop() as end:
        clients.clear()
        gc.collect()
        assert end()
    assert await asyncio.to_thread(_tasks_end)


def test_all_clients_share_one_thread(cluster: Any) -> None:
    for _ in range(2):
        with Client(cluster.endpoints, keyspace="flights") as one, Client(cluster.endpoints, keyspace="flights") as two:
            one.put("key", b"v")
            assert two.get("key") == b"v"
            assert _client_threads() == ["minka client"]


def test_closing_clients_does_not_disturb_the_others(cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The clients that are closed have calls under way, to a node that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"

        def open_and_close() -> None:
            for _ in range(20):
                with Client([address], keyspace="flights", timeout=0.02) as client, pytest.raises(MinkaError):
                    client.get("key")

        with Client(cluster.endpoints, keyspace="flights") as client, ThreadPoolExecutor(6) as pool:
            others = [pool.submit(open_and_close) for _ in range(6)]
            rounds = 0
            while rounds == 0 or not all(other.done() for other in others):
                client.put("key", b"%d" % rounds, timeout=5)
                assert client.get("key", timeout=5) == b"%d" % rounds
                rounds += 1
        for other in others:
            other.result()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []
    assert _tasks_end()


def test_a_call_of_a_closed_client_is_refused(cluster: Any) -> None:
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


def test_calls_end_although_the_client_cannot_be_closed_in_time(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_CLOSE_TIMEOUT_S", 0.05)
    client = Client(cluster.endpoints, keyspace="flights", timeout=30)
    client.put("key", b"v")
    for node in cluster.nodes.values():
        node.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(client.get, "key")
        deadline = time.monotonic() + 10
        while not client._loop._calls and time.monotonic() < deadline:
            time.sleep(0.002)
        with _busy_loop() as end:
            client.close()
            with pytest.raises(MinkaError, match="OUTCOME_UNKNOWN: the client was closed"):
                read.result(timeout=10)
            assert end()
    assert _tasks_end()


def test_a_program_that_never_closes_its_client_ends_quietly(cluster: Any) -> None:
    script = f"import minka; c = minka.Client({cluster.endpoints!r}, keyspace='flights'); c.put('key', b'v')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout + done.stderr == ""
    assert cluster.data == {b"key": b"v"}


def test_modules_are_imported_when_their_names_are_first_used() -> None:
    script = "import sys, minka; print('grpc' in sys.modules); minka.AsyncClient; print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue\n"
    assert minka.Client is Client
    with pytest.raises(AttributeError, match="'minka' has no attribute 'Clients'"):
        _ = minka.Clients  # type: ignore[attr-defined]


def test_a_handle_on_a_keyspace_has_its_name() -> None:
    with minka.Client(["127.0.0.1:1"]) as client:
        flights = client.keyspace("flights")
        assert (flights.name, repr(flights)) == ("flights", "Keyspace('flights')")
    of_loop = minka.AsyncClient(["127.0.0.1:1"]).keyspace("crews")
    assert (of_loop.name, repr(of_loop)) == ("crews", "AsyncKeyspace('crews')")
