"""Ports for the nodes of local clusters. Several processes on a machine run such clusters at the same time, and a node
that is stopped must find its ports free when it starts again. So each process takes its ports from blocks that only
this process uses: it claims a block by a socket whose name contains the block's first port. Such names are separate in
each network namespace, as ports are.
"""

import errno
import os
import random
import socket
from collections import deque
from collections.abc import Collection, Iterable
from threading import RLock
from typing import Final
from weakref import finalize

from minka.errors import Code, MinkaError

LOOPBACK: Final = "127.0.0.1"
PORTS: Final = range(20_000, 32_000)  # below 32768, where ports for outgoing connections begin
_BLOCK: Final = 20  # ports
_MAX_BLOCKS: Final = 25  # of one process, without the ports that it holds; then it uses its ports again


class _Blocks:
    """The blocks of this process. The claims end with the process. Several threads may use this."""

    def __init__(self) -> None:
        self._lock = RLock()  # a cluster that is garbage releases its ports at any moment, perhaps within `free_ports`
        self._claims: dict[int, int] = {}  # the sockets' descriptors, by the block's first port
        self._ports: deque[int] = deque()  # of the blocks; those that were used last are at the end
        self._held: set[int] = set()  # ports of clusters that aren't stopped
        self._unused = 0

    def free_ports(self, count: int, *, hold: bool = False) -> list[int]:
        """Return `count` ports on which no process listens, and which no cluster of this process holds. Ports that this
        process has not used yet are taken first. With `hold` nobody gets the ports again until `release`. Raises
        PLAYGROUND_FAILED.
        """
        found: list[int] = []
        with self._lock:
            for _ in PORTS:
                if not self._unused:
                    self._claim_another(len(self._held) + (len(found) if hold else 0))
                self._unused = max(self._unused - 1, 0)
                self._ports.rotate(-1)
                port = self._ports[-1] if self._ports else 0
                if port and port not in self._held and port not in found and not _is_used(port):
                    found.append(port)
                if len(found) == count:
                    self._held.update(found if hold else ())
                    return found
        text = f"no {count} ports between {PORTS.start} and {PORTS.stop} that neither this process nor another one uses"
        raise MinkaError(Code.PLAYGROUND_FAILED, text)

    def hold(self, ports: Collection[int]) -> None:
        """Hold these ports of nodes that exist already. Their blocks are claimed, unless another process has them."""
        with self._lock:
            self._held.update(ports)
            for start in {port - port % _BLOCK for port in ports} - self._claims.keys():
                self._claim(start)

    def release(self, ports: Collection[int]) -> None:
        """Let these ports be used again."""
        with self._lock:
            self._held.difference_update(ports)

    def close(self) -> None:
        """Close this process's copies of the sockets."""
        while self._claims:
            os.close(self._claims.popitem()[1])

    def _claim_another(self, taken: int) -> None:
        if len(self._ports) - taken >= _MAX_BLOCKS * _BLOCK:
            return
        starts = range(PORTS.start, PORTS.stop, _BLOCK)
        for start in random.SystemRandom().sample(starts, len(starts)):
            if start not in self._claims and self._claim(start):
                self._ports.extendleft(reversed(range(start, start + _BLOCK)))
                self._unused = _BLOCK
                return

    def _claim(self, start: int) -> bool:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0minka-ports-{start}")  # an abstract name: there is no file, so nothing is left behind
        except OSError as error:
            claim.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise MinkaError(Code.PLAYGROUND_FAILED, f"can't claim ports for nodes: {error}") from error
        self._claims[start] = claim.detach()
        return True


_blocks = _Blocks()


def _start_anew() -> None:
    """A fork must not use the ports of the process that it comes from."""
    global _blocks
    _blocks.close()
    _blocks = _Blocks()


os.register_at_fork(after_in_child=_start_anew)


def free_addresses(count: int) -> list[str]:
    """Return different loopback addresses host:port at which no process listens now. No other process that uses this
    function gets them while this process runs. This process gets them again after 500 other ports, or earlier if other
    processes have claimed all other blocks. Raises MinkaError(PLAYGROUND_FAILED).
    """
    return [f"{LOOPBACK}:{port}" for port in _blocks.free_ports(count)]


class HeldPorts:
    """The ports of one cluster. No other cluster gets them until `release`, or until this object is garbage."""

    def __init__(self) -> None:
        self._ports: Final[set[int]] = set()
        self._finalizer = finalize(self, _release, self._ports)
        self._finalizer.atexit = False

    def take(self, count: int) -> list[str]:
        """Return addresses as `free_addresses` does, and hold them. Raises MinkaError(PLAYGROUND_FAILED)."""
        ports = _blocks.free_ports(count, hold=True)
        self._ports.update(ports)
        return [f"{LOOPBACK}:{port}" for port in ports]

    def hold(self, addresses: Iterable[str]) -> None:
        """Hold the addresses of nodes that exist already. Raises MinkaError(PLAYGROUND_FAILED)."""
        ports = [int(address.rpartition(":")[2]) for address in addresses]
        _blocks.hold(ports)
        self._ports.update(ports)

    def release(self) -> None:
        """Let others have the ports."""
        self._finalizer()


def _release(ports: set[int]) -> None:
    _blocks.release(ports)


def _is_used(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False
