"""The plainest copy of files over loopback: one process reads the files, and another one writes and syncs them, without
checksums, a database, or clients.

The receiver is a separate process. Its arguments are the target folder, and [name, size in bytes] of each file in JSON.
It prints the port on which it accepts one connection, and sends a byte on this connection when all files are durable.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.processes import Group, answer, free_ports
from minka.testing.loopback_ports import LOOPBACK

_CHUNK_BYTES: Final = 1024 * 1024
_TIMEOUT_S: Final = 120.0


def copy(files: Sequence[Path]) -> float:
    """Copy the files; returns the seconds from the first read until all files are durable at the receiver."""
    sizes = json.dumps([(file.name, file.stat().st_size) for file in files])
    with Group("copy") as group:
        command = [sys.executable, "-m", "benchmarks.plain_copy", str(group.directory / "copied"), sizes]
        port = group.start_talking("receiver", command).hear()
        with socket.create_connection((LOOPBACK, port), _TIMEOUT_S) as connection:
            buffer = memoryview(bytearray(_CHUNK_BYTES))
            started = time.monotonic()
            for file in files:
                with file.open("rb", buffering=0) as source:
                    while count := source.readinto(buffer):
                        connection.sendall(buffer[:count])
            if not connection.recv(1):
                raise group.failed()
            return time.monotonic() - started


def _receive(folder: Path, sizes: Sequence[tuple[str, int]]) -> None:
    folder.mkdir()
    with socket.create_server((LOOPBACK, free_ports(1)[0])) as server:
        answer(server.getsockname()[1])
        connection, _ = server.accept()
    with connection:
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        for name, size in sizes:
            with (folder / name).open("wb", buffering=0) as target:
                left = size
                while left:
                    count = connection.recv_into(buffer, min(left, _CHUNK_BYTES))
                    if not count:
                        raise ConnectionError(f"the sender ended within {name}")
                    target.write(buffer[:count])
                    left -= count
                os.fsync(target.fileno())
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(handle)
        os.close(handle)
        connection.sendall(b".")


if __name__ == "__main__":
    _receive(Path(sys.argv[1]), json.loads(sys.argv[2]))
