"""The files of loads on simulated nodes. A node has a file completely and durably, or not at all."""

import zlib
from collections.abc import AsyncIterator, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import msgspec

from minka.errors import Code, MinkaError
from minka.v1.load_api_pb2 import FetchRequest
from minka.v1.loads_pb2 import LoadFile
from minkad.loads.collecting import Collecting
from minkad.loads.fetching import Fetching
from minkad.loads.spool import Spool
from minkad.replication.surroundings import LoadSources
from tests.simulation.streams import ByteStream

if TYPE_CHECKING:
    from tests.simulation.process import Process

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(dict[bytes, bytes]).decode


@dataclass(slots=True)
class SpoolDisk:
    """Files and their contents, by load and name. They outlive a process."""

    files: dict[int, dict[str, tuple[LoadFile, bytes]]] = field(default_factory=dict)

    def keep(self, number: int, file: LoadFile, content: bytes) -> None:
        """Store a complete file, durably."""
        self.files.setdefault(number, {})[file.name] = (file, content)


def encode_rows(rows: Mapping[bytes, bytes]) -> bytes:
    """Encode rows as the content of a file."""
    return _encode(rows)


class NodeSpool:
    """The components of a daemon that handle loads, connected as in `minkad.node.daemon`."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self.files = SimSpool(process, process.machine.spool_disk)
        self.fetching = Fetching(process.machine.id, cast("Spool", self.files), self._fetch, process.coordinator)

    def sources(self) -> LoadSources:
        """The parts of the spool that the data plane uses."""
        process = self._process
        return LoadSources(
            cast("Spool", self.files),
            self.fetching,
            process.coordinator,
            process.calls.pull_file,
        )

    def begin(self) -> None:
        """Start to remove files that no load needs."""
        process = self._process
        assert process.manager.ingesting is not None
        is_in_log = process.manager.ingesting.is_in_log
        collecting = Collecting(cast("Spool", self.files), process.coordinator, is_in_log)
        process.spawn(collecting.run())

    async def _fetch(self, node_id: str, request: FetchRequest) -> AsyncIterator[bytes]:
        address = self._process.coordinator.address_of(node_id)
        async for message in ByteStream(self._process, address, partial(_send, request)).run(_nothing()):
            yield message


async def _nothing() -> AsyncIterator[bytes]:
    messages: tuple[bytes, ...] = ()
    for message in messages:
        yield message


async def _send(request: FetchRequest, server: "Process", _: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    assert server.spool is not None
    file, content = server.spool.files.find(request.load_number, request.name)
    yield file.SerializeToString()
    await server.disk_work()
    yield content


class SimSpool:
    """The simulated `Spool`, with the methods that take in, fetch and remove files."""

    def __init__(self, process: "Process", disk: SpoolDisk) -> None:
        self._process = process
        self._disk = disk
        self._links: dict[Path, bytes] = {}
        self._numbers = count(1)

    def numbers(self) -> list[int]:
        """The loads that have files on this node."""
        return [number for number, files in self._disk.files.items() if files]

    def files(self, number: int) -> list[LoadFile]:
        """The files of a load."""
        return [file for file, _ in self._disk.files.get(number, {}).values()]

    @property
    def partitions(self) -> Container[int]:
        """See `Spool.partitions`."""
        return _Partitions(self)

    def files_for(self, partition_id: int) -> list[tuple[int, LoadFile]]:
        """The files for a partition, each with the number of its load."""
        return [(n, file) for n in self.numbers() for file in self.files(n) if file.partition_id == partition_id]

    def find(self, number: int, name: str) -> tuple[LoadFile, bytes]:
        """Return the file and its content. Raises UNKNOWN_FILE."""
        found = self._disk.files.get(number, {}).get(name)
        if found is None:
            raise MinkaError(Code.UNKNOWN_FILE, f"load {number} has no file {name} here")
        return found

    def has(self, number: int, name: str, checksum: int) -> bool:
        """True if this node has the file with this checksum."""
        found = self._disk.files.get(number, {}).get(name)
        return found is not None and found[0].checksum == checksum

    async def receive(
        self, number: int, file: LoadFile, chunks: AsyncIterator[bytes], *, is_checked: bool = False
    ) -> None:
        """Store a file, durably."""
        content = b"".join([chunk async for chunk in chunks])
        if len(content) != file.bytes:
            raise MinkaError(Code.INVALID_ARGUMENT, f"{file.name}: only {len(content)} of {file.bytes} bytes came")
        assert zlib.crc32(content) == file.checksum, file
        await self._process.disk_work()
        if self._process.alive:
            self._disk.keep(number, file, content)
        self._process.point()

    async def verify(self, number: int, name: str, checksum: int) -> None:
        """Check that the node has the file. Raises UNKNOWN_FILE."""
        await self._process.disk_work()
        file, _ = self.find(number, name)
        assert file.checksum == checksum, file

    async def link(self, number: int, name: str, checksum: int) -> Path:
        """Make a link to the file and return its path; the caller has to discard the link. Raises UNKNOWN_FILE."""
        await self.verify(number, name, checksum)
        link = Path("spool") / str(next(self._numbers))
        self._links[link] = self.find(number, name)[1]
        return link

    def rows(self, link: Path) -> dict[bytes, bytes]:
        """The rows in the file to which the link leads."""
        return _decode(self._links[link])

    async def discard(self, link: Path) -> None:
        """Remove a link that is no longer needed."""
        self._links.pop(link, None)

    async def remove(self, number: int, names: Iterable[str]) -> None:
        for name in names:
            if self._process.alive:
                self._disk.files.get(number, {}).pop(name, None)
        await self._process.disk_work()


class _Partitions(Container[int]):
    def __init__(self, spool: SimSpool) -> None:
        self._spool = spool

    def __contains__(self, partition_id: object) -> bool:
        return isinstance(partition_id, int) and bool(self._spool.files_for(partition_id))
