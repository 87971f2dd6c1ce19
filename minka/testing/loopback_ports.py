"""Ports for the nodes of local clusters. Several processes on a machine run such clusters at the same time, and a node
that is stopped must find its ports free when it starts again. So each process takes its ports from blocks that only
this process uses: it claims a block by a socket whose name contains the block's number.
"""

import os
import random
import socket
from collections import deque
from typing import Final

from minka.errors import Code, MinkaError

LOOPBACK: Final = "127.0.0.1"
PORTS: Final = range(20_000, 32_000)  # below 32768, where ports for outgoing connections begin
_BLOCK: Final = 20  # ports
_MAX_BLOCKS: Final = 50  # of one process; after that it uses its ports again


class _Blocks:
    """The blocks of this process. The sockets, and so the claims, end with the process."""

    def __init__(self) -> None:
        self._claims: list[int] = []  # the sockets' descriptors
        self._ports: deque[int] = deque()  # of all claimed blocks; those that were used last are at the end
        self._unused = 0

    def next_port(self) -> int:
        """A port that this process has not used yet, or else the one whose use is the longest ago."""
        if not self._unused:
            self._claim()
        if not self._ports:
            text = f"other processes use all ports between {PORTS.start} and {PORTS.stop}"
            raise MinkaError(Code.PLAYGROUND_FAILED, text)
        self._unused = max(self._unused - 1, 0)
        self._ports.rotate(-1)
        return self._ports[-1]

    def close(self) -> None:
        """Close this process's copies of the sockets."""
        for claim in self._claims:
            os.close(claim)

    def _claim(self) -> None:
        if len(self._claims) == _MAX_BLOCKS:
            return
        starts = range(PORTS.start, PORTS.stop, _BLOCK)
        for start in random.SystemRandom().sample(starts, len(starts)):
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                claim.bind(f"\0minka-ports-{start}")  # an abstract name: there is no file, so nothing is left behind
            except OSError:
                claim.close()
                continue
            self._claims.append(claim.detach())
            self._ports.extendleft(range(start, start + _BLOCK))
            self._unused = _BLOCK
            return


_blocks = _Blocks()


def _start_anew() -> None:
    """A fork must not use the ports of the process that it comes from."""
    global _blocks
    _blocks.close()
    _blocks = _Blocks()


os.register_at_fork(after_in_child=_start_anew)


def free_addresses(count: int) -> list[str]:
    """Return loopback addresses host:port at which no process listens now. No other process that uses this function
    gets them while this process runs; this process gets them again after some 1,000 other ports. Raises
    MinkaError(PLAYGROUND_FAILED).
    """
    found: list[str] = []
    for _ in PORTS:
        port = _blocks.next_port()
        if not _is_used(port):
            found.append(f"{LOOPBACK}:{port}")
        if len(found) == count:
            return found
    raise MinkaError(Code.PLAYGROUND_FAILED, f"no {count} free ports between {PORTS.start} and {PORTS.stop}")


def _is_used(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False
