"""Ports for the nodes of local clusters. Several processes on a machine run such clusters at the same time, and a node
that is stopped must find its ports free when it starts again. So each process takes its ports from blocks that only
this process uses: it claims a block by a socket whose name contains the block's first port. Such names are separate in
each network namespace, as ports are.
"""

import errno
import os
import random
import socket
from collections import Counter, deque
from collections.abc import Collection, Iterable
from threading import Lock
from typing import Final
from weakref import finalize

from minka.errors import Code, MinkaError

LOOPBACK: Final = "127.0.0.1"
PORTS: Final = range(20_000, 32_000)  # below 32768, where ports for outgoing connections begin
_BLOCK: Final = 20  # ports
_MAX_BLOCKS: Final = 8  # of one process, without the ports that it holds; then it uses its ports again
_NAME: Final = "minka-ports"


class _Blocks:
    """The blocks of this process. The claims end with the process. Several threads may use this."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._claims: dict[int, int] = {}  # the sockets' descriptors, by the block's first port
        self._ports: deque[int] = deque()  # of the blocks; those that were used last are at the end
        self._unused = 0
        self._held = Counter[int]()  # ports of clusters that aren't stopped
        # Ports that are no longer held. A cluster may become garbage at any moment, also while the lock is held.
        self._released: deque[int] = deque()

    def free_ports(self, count: int, *, hold: bool = False) -> list[int]:
        """Return `count` ports on which no process listens, and which no cluster of this process holds. Ports that this
        process has not used yet are taken first. With `hold` nobody gets the ports again until `release`. Raises
        PLAYGROUND_FAILED.
        """
        found: list[int] = []
        with self._lock:
            self._drop_released()
            looked, is_more = 0, True
            while len(found) < count:
                spare = len(self._ports) - len(self._held)
                if not self._unused and is_more and (spare < _MAX_BLOCKS * _BLOCK or looked == len(self._ports)):
                    is_more = self._claim_another()
                if looked == len(self._ports):
                    text = f"no {count} ports between {PORTS.start} and {PORTS.stop} are free for this process"
                    raise MinkaError(Code.PLAYGROUND_FAILED, text)
                looked, self._unused = looked + 1, max(self._unused - 1, 0)
                self._ports.rotate(-1)
                if self._ports[-1] not in self._held and not is_used(self._ports[-1]):
                    found.append(self._ports[-1])
            self._held.update(found if hold else ())
        return found

    def hold(self, ports: Collection[int]) -> None:
        """Hold these ports of nodes that exist already. Their blocks are claimed, unless another process has them.
        Raises PLAYGROUND_FAILED.
        """
        with self._lock:
            self._drop_released()
            self._held.update(ports)
            for start in {port - port % _BLOCK for port in ports} - self._claims.keys():
                self._claim(start)

    def release(self, ports: Iterable[int]) -> None:
        """Let these ports be used again."""
        self._released.extend(ports)

    def close(self) -> None:
        """Close this process's copies of the sockets."""
        while self._claims:
            os.close(self._claims.popitem()[1])

    def _drop_released(self) -> None:
        while self._released:
            port = self._released.popleft()
            self._held[port] -= 1
            if self._held[port] <= 0:
                del self._held[port]

    def _claim_another(self) -> bool:
        """Claim one more block; return False if other processes have all."""
        starts = range(PORTS.start, PORTS.stop, _BLOCK)
        for start in random.SystemRandom().sample(starts, len(starts)):
            if start not in self._claims and self._claim(start):
                self._ports.extendleft(reversed(range(start, start + _BLOCK)))
                self._unused = _BLOCK
                return True
        return False

    def _claim(self, start: int) -> bool:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
                claim.bind(f"\0{_NAME}-{start}")  # an abstract name: there is no file, so nothing is left behind
                self._claims[start] = claim.detach()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise MinkaError(Code.PLAYGROUND_FAILED, f"can't claim ports for nodes: {error}") from error
        return True


_blocks = _Blocks()


def _start_again() -> None:
    """A fork must not use the ports of the process that it comes from."""
    global _blocks
    _blocks.close()
    _blocks = _Blocks()


os.register_at_fork(after_in_child=_start_again)


def free_addresses(count: int) -> list[str]:
    """Return different loopback addresses host:port at which no process listens now. No other process that uses this
    function gets them while this process runs. This process gets them again after 160 other ports, or earlier if other
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
        self._ports.update(ports)
        _blocks.hold(ports)

    def release(self) -> None:
        """Let others have the ports."""
        self._finalizer()


def _release(ports: set[int]) -> None:
    _blocks.release(ports)


def is_used(port: int) -> bool:
    """True if a process listens on the loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False
