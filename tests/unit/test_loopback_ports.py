"""The ports of local clusters: each process has its own."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from minka.errors import MinkaError
from minka.testing import loopback_ports
from minka.testing.loopback_ports import LOOPBACK, PORTS, HeldPorts, _Blocks, free_addresses

# A fork takes ports, and then its parent takes ports, too.
FORKS = """
import os
from minka.testing.loopback_ports import free_addresses
free_addresses(5)
reader, writer = os.pipe()
if (pid := os.fork()) == 0:
    os.write(writer, " ".join(free_addresses(10)).encode())
    os._exit(0)
theirs = os.read(reader, 1000).decode().split()
os.waitpid(pid, 0)
print(len({*theirs, *free_addresses(10)}))
"""
SMALL = range(40_000, 40_040)  # two blocks


@pytest.fixture(autouse=True)
def _new_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with closing(_Blocks()) as blocks:
        monkeypatch.setattr(loopback_ports, "_blocks", blocks)
        yield


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are only two blocks, and no port of them is in use. Other runs of this test have names of their own."""
    monkeypatch.setattr(loopback_ports, "_NAME", f"minka-test-{os.getpid()}")
    monkeypatch.setattr(loopback_ports, "PORTS", SMALL)
    monkeypatch.setattr(loopback_ports, "is_used", lambda port: False)


def test_they_differ_and_are_in_the_range() -> None:
    found = [int(address.removeprefix(f"{LOOPBACK}:")) for address in free_addresses(200)]
    assert len(set(found)) == 200
    assert PORTS.start <= min(found) <= max(found) < PORTS.stop


def test_each_process_has_blocks_of_its_own(small: None) -> None:
    with closing(_Blocks()) as one, closing(_Blocks()) as other:
        ports = [*one.free_ports(20), *other.free_ports(20)]
        assert sorted(ports) == [*SMALL]
        with closing(_Blocks()) as third:
            with pytest.raises(MinkaError, match="no 1 ports between 40000 and 40040 are free for this process"):
                third.free_ports(1)
            one.close()
            assert third.free_ports(20) == ports[:20]


def test_a_process_whose_blocks_are_few_never_names_a_port_twice(small: None) -> None:
    with closing(_Blocks()) as blocks:
        assert len(set(blocks.free_ports(40))) == 40
        with pytest.raises(MinkaError, match="PLAYGROUND_FAILED"):
            blocks.free_ports(41)
        assert len(set(blocks.free_ports(40))) == 40


def test_the_ports_of_an_earlier_run_are_claimed(small: None) -> None:
    held = HeldPorts()
    held.hold([f"{LOOPBACK}:{port}" for port in (40_003, 40_021, 40_022)])
    with closing(_Blocks()) as another, pytest.raises(MinkaError, match="PLAYGROUND_FAILED"):
        another.free_ports(1)


def test_held_ports_are_nobodys_until_they_are_released(small: None) -> None:
    held, dropped = HeldPorts(), HeldPorts()
    ports = {*held.take(3), *dropped.take(3)}
    assert not ports & {*free_addresses(34)}
    with pytest.raises(MinkaError, match="PLAYGROUND_FAILED"):
        free_addresses(35)
    held.release()
    assert len({*free_addresses(37)} & ports) == 3
    del dropped
    assert len(free_addresses(40)) == 40


def test_a_port_that_two_clusters_hold_is_free_when_both_have_released_it(small: None) -> None:
    first, second = HeldPorts(), HeldPorts()
    (address,) = first.take(1)
    second.hold([address])
    first.release()
    with pytest.raises(MinkaError, match="PLAYGROUND_FAILED"):
        free_addresses(40)
    second.release()
    assert address in free_addresses(40)


def test_a_process_may_hold_more_ports_than_it_uses_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_ports, "_MAX_BLOCKS", 1)
    held = HeldPorts()
    assert len({*held.take(50)}) == 50
    held.release()


def test_a_fork_gets_other_ports() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    assert ended.stdout == "20\n"


def test_a_port_on_which_somebody_listens_is_left_out() -> None:
    [first] = free_addresses(1)
    port = int(first.rpartition(":")[2])
    with socket.create_server((LOOPBACK, port + 1)):
        assert free_addresses(1) == [f"{LOOPBACK}:{port + 2}"]


def test_they_do_not_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a process has used all ports that it may claim, it uses them again: first those used longest ago."""
    monkeypatch.setattr(loopback_ports, "_MAX_BLOCKS", 5)
    found = [free_addresses(20) for _ in range(10)]
    assert found[5:] == found[:5]
    assert len({address for some in found for address in some}) == 100


def test_a_garbage_cluster_releases_its_ports_while_others_are_taken(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector runs at any moment, also while `free_ports` holds the lock."""
    garbage = [HeldPorts()]
    garbage[0].take(3)

    def collect(port: int) -> bool:
        garbage.clear()
        return False

    monkeypatch.setattr(loopback_ports, "is_used", collect)
    assert len(free_addresses(1)) == 1
    monkeypatch.setattr(loopback_ports, "is_used", lambda port: False)
    assert len(free_addresses(40)) == 40
