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
from collections.abc import Iterable
from threading import Lock
from typing import Final

from minka.errors import Code, MinkaError

LOOPBACK: Final = "127.0.0.1"
PORTS: Final = range(20_000, 32_000)  # below 32768, where ports for outgoing connections begin
_BLOCK: Final = 20  # ports
_MAX_BLOCKS: Final = 25  # of one process; after that it uses its ports again


class _Blocks:
    """The blocks of this process. The claims end with the process. Several threads may use this."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._claims: dict[int, int] = {}  # the sockets' descriptors, by the block's first port
        self._ports: deque[int] = deque()  # of the blocks; those that were used last are at the end
        self._unused = 0

    def free_ports(self, count: int) -> list[int]:
        """Return `count` ports on which no process listens. Ports that this process has not used yet are taken first.
        Raises PLAYGROUND_FAILED.
        """
        found: list[int] = []
        with self._lock:
            for _ in PORTS:
                if not self._unused:
                    self._claim_another()
                self._unused = max(self._unused - 1, 0)
                self._ports.rotate(-1)
                if self._ports and self._ports[-1] not in found and not _is_used(self._ports[-1]):
                    found.append(self._ports[-1])
                if len(found) == count:
                    return found
        text = f"no {count} ports between {PORTS.start} and {PORTS.stop} that neither this process nor another one uses"
        raise MinkaError(Code.PLAYGROUND_FAILED, text)

    def keep(self, ports: Iterable[int]) -> None:
        """Claim the blocks of these ports, unless another process has them: they belong to nodes of an earlier run."""
        with self._lock:
            for start in {port - port % _BLOCK for port in ports} - self._claims.keys():
                self._claim(start)

    def close(self) -> None:
        """Close this process's copies of the sockets."""
        while self._claims:
            os.close(self._claims.popitem()[1])

    def _claim_another(self) -> None:
        if len(self._ports) >= _MAX_BLOCKS * _BLOCK:
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


def keep(addresses: Iterable[str]) -> None:
    """Claim the ports of nodes that an earlier process made, unless another process has claimed them since then."""
    _blocks.keep(int(address.rpartition(":")[2]) for address in addresses)


def _is_used(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False
