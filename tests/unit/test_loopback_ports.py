"""The ports of local clusters: each process has its own."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from minka.testing import loopback_ports
from minka.testing.loopback_ports import LOOPBACK, PORTS, free_addresses

OTHER = """
from minka.testing.loopback_ports import free_addresses
print(*free_addresses(200), flush=True)
input()
"""


@pytest.fixture(autouse=True)
def _new_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with closing(loopback_ports._Blocks()) as blocks:
        monkeypatch.setattr(loopback_ports, "_blocks", blocks)
        yield


def ports_of(addresses: list[str]) -> list[int]:
    return [int(address.removeprefix(f"{LOOPBACK}:")) for address in addresses]


def test_they_differ_and_are_in_the_range() -> None:
    found = ports_of(free_addresses(200))
    assert len(set(found)) == 200
    assert PORTS.start <= min(found) <= max(found) < PORTS.stop


def test_another_process_gets_other_ports() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        others = other.stdout.readline().split()
        assert len(others) == 200
        assert not {*others} & {*free_addresses(200)}
        other.communicate("\n")


def test_a_fork_gets_other_ports() -> None:
    ours = free_addresses(5)
    reader, writer = socket.socketpair()
    with reader, writer:
        if (pid := os.fork()) == 0:
            writer.send(" ".join(free_addresses(5)).encode())
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert not {*reader.recv(1000).decode().split()} & {*ours}


def test_a_port_on_which_somebody_listens_is_left_out() -> None:
    [first] = ports_of(free_addresses(1))
    with socket.create_server((LOOPBACK, first - 1)):  # the next one
        assert ports_of(free_addresses(1)) == [first - 2]


def test_they_do_not_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a process has used all ports that it may claim, it begins again with those whose use is the longest ago."""
    monkeypatch.setattr(loopback_ports, "_MAX_BLOCKS", 5)
    found = [free_addresses(20) for _ in range(10)]
    assert found[5:] == found[:5]
    assert len(set().union(*found)) == 100
