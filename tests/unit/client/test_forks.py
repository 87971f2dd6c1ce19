"""Programs that fork after they have used a client."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from minka.v1.duty_api_pb2 import GetShardsResponse
from tests.unit.client.conftest import ControlNode


def _forking(endpoints: list[str], parent: str, child: str) -> list[str]:
    """The output of a program that runs `parent`, forks, and runs `child` in the child process. The child ends with
    `os._exit`, like children of multiprocessing: gRPC doesn't survive a fork, so an ordinary exit would crash.
    """
    script = f"""
import os, sys
from minka import Client
from minka.errors import MinkaError
endpoints = {endpoints!r}
{parent}
if (pid := os.fork()) == 0:
{textwrap.indent(textwrap.dedent(child), "    ")}
    sys.stdout.flush()
    os._exit(7)
print("child:", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()


def test_a_client_refuses_calls_in_a_forked_child(cluster: Any) -> None:
    child = """
        for use in (lambda: client.get("key"), lambda: Client(endpoints)):
            try:
                use()
            except MinkaError as error:
                print(error)
        client.close()
        """
    *told, last = _forking(
        cluster.endpoints, 'client = Client(endpoints, keyspace="flights"); client.put("key", b"v")', child
    )
    assert len(told) == 2
    # With gRPC's own support for forks, one forked child in ten would crash before it does anything.
    assert os.environ["GRPC_ENABLE_FORK_SUPPORT"] == "false"
    assert all(line.startswith("INVALID_ARGUMENT: this process was forked from one that") for line in told)
    assert last == "child: 7"


def test_a_forked_child_may_make_the_first_client(cluster: Any) -> None:
    child = """
        with Client(endpoints, keyspace="flights") as client:
            client.put("key", b"v")
        """
    assert _forking(cluster.endpoints, "", child) == ["child: 7"]
    assert cluster.data == {b"key": b"v"}


ANSWERED = """
    async with make(endpoints) as client:
        await ask(client)
"""
REFUSED = """
    async with make(["127.0.0.1:1"]) as client:
        with contextlib.suppress(MinkaError):
            await ask(client)
"""
GIVEN_UP = """
    async with make([silent]) as client:
        try:
            async with asyncio.timeout(0.1):
                await ask(client)
        except TimeoutError as error:
            kept = error  # a reference cycle: the error's traceback leads to this frame
"""
CLOSED_MEANWHILE = """
    client = make([silent])
    asking = asyncio.create_task(ask(client))
    accepted = await asyncio.to_thread(listener.accept)
    await client.close()
    with contextlib.suppress(MinkaError):
        await asking
"""


@pytest.mark.parametrize(
    "use", [ANSWERED, REFUSED, GIVEN_UP, CLOSED_MEANWHILE], ids=["answered", "refused", "given up", "closed"]
)
@pytest.mark.parametrize(
    ("make", "ask"),
    [
        ("partial(minka.AsyncClient, keyspace='flights')", "lambda client: client.get('key')"),
        ("minka.duties.AsyncClient", "lambda client: client.shards()"),
    ],
    ids=["keys", "duties"],
)
def test_no_garbage_of_closed_clients_makes_a_forked_child_wait(
    control_node: Callable[[], ControlNode], cluster: Any, make: str, ask: str, use: str
) -> None:
    """If gRPC's poller is garbage, the child's garbage collector waits for a thread that only the parent has."""
    node = control_node()
    node.answers["GetShards"] = GetShardsResponse()
    endpoints = [node.address] if "duties" in make else cluster.endpoints
    parent = f"""
import asyncio, contextlib, gc, signal, socket
from functools import partial
import minka, minka.duties
listener = socket.create_server(("127.0.0.1", 0))
silent = "127.0.0.1:%d" % listener.getsockname()[1]
make, ask = {make}, {ask}
async def use():
{textwrap.indent(textwrap.dedent(use), "    ")}
gc.disable()  # so that garbage is still there in the child
asyncio.run(use())
"""
    assert _forking(endpoints, parent, "signal.alarm(5); gc.collect()") == ["child: 7"]
