"""Bulk loads without Spark: one file of sorted rows for each partition is uploaded to the nodes that have its replicas;
then one commit makes the nodes take in all of the files. The client is synchronous; Minka's jobs on Spark use it, too.

    with LoadClient(["athens:7400"]) as client:
        load = client.begin("flights-2013", "flights")
        files = []
        for target in client.targets("flights"):
            written = write_sst(path, sorted_rows_of(target))
            if written is not None:
                files.append(client.upload(load, target, written, f"p{target.partition_id}-1"))
        client.commit(load, files)
        client.wait(load.id)
"""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc

from minka.admin.control import Control
from minka.bulk.sst_files import Written
from minka.cluster.key_ranges import KeyRange
from minka.engine.grpc_calls import error_from_call
from minka.engine.retry import delay_s
from minka.engine.sync_channels import Channels
from minka.errors import Code, MinkaError
from minka.tls import Tls
from minka.v1.cluster_pb2 import Keyspace, NodeState, Partition, PartitionTable
from minka.v1.load_api_pb2 import (
    CutFilesRequest,
    GetLoadsResponse,
    ListFilesRequest,
    ListFilesResponse,
    PullFileRequest,
    UploadHeader,
)
from minka.v1.load_api_pb2_grpc import SpoolStub
from minka.v1.loads_pb2 import Load, LoadFile, LoadState

UPLOAD_METHOD: Final = "/minka.v1.Spool/Upload"
FETCH_METHOD: Final = "/minka.v1.Spool/Fetch"

T = TypeVar("T")

_CHUNK_BYTES: Final = 256 * 1024
_ASK_SECONDS: Final = 5.0
_FILE_SECONDS: Final = 3600.0  # the most time for a node to fetch or cut one file
_LOOK_SECONDS: Final = 10.0  # seconds between two questions to a node that is receiving a file
_SILENT_SECONDS: Final = 60.0  # the most time without an answer from a node that is receiving a file
_ENOUGH_SECONDS: Final = 5.0  # once enough nodes have a file, the client waits this long for the others
_POLL_SECONDS: Final = 0.1
_PASSING_SECONDS: Final = 30.0  # how long a load waits at its start for a node or replica that may come back
_RNG: Final = Random()
# After an error with one of these codes, repeating the request doesn't help.
_FINAL: Final = frozenset(
    {Code.DISK_FULL, Code.LOAD_ENDED, Code.UNKNOWN_LOAD, Code.INVALID_ARGUMENT, Code.TOO_LARGE, Code.CLUSTER_MISMATCH}
)


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """A partition as it was when the table was fetched. `nodes` has the id and the address of each node that needs a
    file of the partition.
    """

    partition_id: int
    slot: int
    range: KeyRange
    nodes: tuple[tuple[str, str], ...]
    min_insync: int

    @property
    def needed(self) -> int:
        """The number of nodes that must have a file of the partition before the load can be committed."""
        return min(max(1, self.min_insync), len(self.nodes))

    def file(self, name: str) -> LoadFile:
        """A `LoadFile` of this name for the partition. The caller sets its size, rows and digests."""
        start, end = self.range
        return LoadFile(partition_id=self.partition_id, name=name, slot=self.slot, start_key=start, end_key=end)

    def is_of(self, file: LoadFile) -> bool:
        """True if the file was made for this partition, whose slot and bounds haven't changed since."""
        cut_for = (file.partition_id, file.slot, file.start_key, file.end_key)
        return cut_for == (self.partition_id, self.slot, *self.range)


@dataclass(slots=True)
class _Heard:
    """The time of a node's last answer, by the monotonic clock, in seconds."""

    at: float


class LoadClient:
    """A client for bulk loads, for one thread. `endpoints` are addresses host:port of some of the nodes. A call waits
    at most `timeout` seconds for a node that restarts, an election of the controller, or a partition that is being
    split. It raises an error at once if waiting can't help.

    All errors are `MinkaError`. `tls` is for a cluster with TLS; a mistake in its files raises INVALID_CONFIG.
    """

    def __init__(self, endpoints: Sequence[str], *, tls: Tls | None = None, timeout: float = 60.0) -> None:
        self.control: Final = Control(endpoints, timeout, tls=tls)
        self._timeout: Final = timeout
        self._channels: Final = Channels(tls)
        self._pool: Final = ThreadPoolExecutor(16, "minka-load")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.control.close()
        self._channels.close()

    # Loads

    def begin(self, load_id: str, keyspace: str, *, requested_by: str = "", job: str = "", rate_limit: int = 0) -> Load:
        """Begin a load, or return the load that has this id already, in any state. `Control.begin_load` describes the
        arguments and the errors.
        """
        return self._patiently(
            lambda: self.control.begin_load(
                load_id, keyspace, requested_by=requested_by, job=job, rate_limit=rate_limit
            )
        )

    def touch(self, load_id: str) -> Load:
        """Tell the cluster that somebody still works on the load. The cluster aborts a load that nobody has touched for
        `loads.abandoned_after_s` seconds. Raises UNKNOWN_LOAD.
        """
        return self._patiently(lambda: self.control.touch_load(load_id))

    def abort(self, load_id: str, requested_by: str = "", reason: str = "") -> Load:
        """Abort the load: nodes take in nothing of it, and remove its files. Raises UNKNOWN_LOAD, and LOAD_ENDED once
        it is committed.
        """
        return self._patiently(lambda: self.control.abort_load(load_id, requested_by, reason))

    def all(self) -> list[Load]:
        """The loads that have not ended, and the loads that ended last; the newest come first."""
        return [*self._patiently(self.control.loads).loads]

    def describe(self, load_id: str) -> GetLoadsResponse:
        """One load. While nodes take the load in, the answer also has its parts, and the reason for each part that
        waits. Raises UNKNOWN_LOAD.
        """
        return self._patiently(lambda: self.control.loads([load_id], with_parts=True))

    def wait(self, load_id: str, on_progress: Callable[[GetLoadsResponse], None] = lambda _: None) -> Load:
        """Wait until the load is DONE, however long that takes, and return it. `on_progress` is called about ten times
        a second. Raises UNKNOWN_LOAD, and LOAD_ENDED if the load was aborted.
        """
        while True:
            found = self._patiently(lambda: self.control.loads([load_id]))
            on_progress(found)
            (load,) = found.loads
            if load.state == LoadState.LOAD_STATE_DONE:
                return load
            if load.state == LoadState.LOAD_STATE_ABORTED:
                raise MinkaError(Code.LOAD_ENDED, f"load {load_id} is over: {load.outcome}")
            time.sleep(_POLL_SECONDS)

    # Before a load

    def targets(self, keyspace: str) -> list[LoadTarget]:
        """The partitions of a keyspace as they are now, in the order of slots or ranges. Raises UNKNOWN_KEYSPACE."""
        return self.layout(keyspace)[2]

    def layout(self, keyspace: str) -> tuple[Keyspace, list[Partition], list[LoadTarget]]:
        """The keyspace, its partitions' rows, and their targets in the same order. Raises UNKNOWN_KEYSPACE."""
        table = self._table()
        found = _keyspace(table, keyspace)
        addresses = {node.id: node.address for node in table.nodes}
        rows = [row for row in table.partitions if row.keyspace_id == found.id and row.replicas]
        rows.sort(key=lambda row: (row.start_key, row.slot))
        return found, rows, [_target(found, row, addresses) for row in rows]

    def staged(self, load: Load, targets: Iterable[LoadTarget]) -> dict[int, LoadFile]:
        """Files of the load that are in the spools already, by the id of the partition for which each was cut. A file
        counts if the partition hasn't changed since, and enough nodes have the file; a node that doesn't answer counts
        as one without the file.
        """
        targets = list(targets)
        nodes = dict(node for target in targets for node in target.nodes)
        asked = {node: self._pool.submit(self._files_at, address, load.number) for node, address in nodes.items()}
        there = {node: answer.result().files for node, answer in asked.items() if answer.exception() is None}
        found: dict[int, LoadFile] = {}
        for target in targets:
            counts = Counter((file.name, file.checksum) for node, _ in target.nodes for file in there.get(node, ()))
            for file in (file for node, _ in target.nodes for file in there.get(node, ())):
                if target.is_of(file) and counts[file.name, file.checksum] >= target.needed:
                    found[target.partition_id] = file
                    break
        return found

    def check(self, keyspace: str, bytes_: int, version: str = "") -> None:
        """Check that a load of files of `bytes_` bytes can succeed now: each node that has replicas of the keyspace
        answers and has room for its share, and enough replicas are in sync. A single error names everything that is
        missing: DISK_FULL, NOT_ENOUGH_REPLICAS, UNREACHABLE, or INVALID_ARGUMENT for a node of another version than
        `version` ("": any). Raises UNKNOWN_KEYSPACE.

        This waits at most half a minute for a node that restarts. A node that has failed gets its files later from
        other nodes, if enough replicas are in sync without it.
        """
        deadline = time.monotonic() + min(self._timeout, _PASSING_SECONDS)
        while True:
            try:
                return self._check(keyspace, bytes_, version)
            except MinkaError as error:
                may_pass = error.code in (Code.UNREACHABLE, Code.NOT_ENOUGH_REPLICAS)
                if not may_pass or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_SECONDS)

    def _check(self, keyspace: str, bytes_: int, version: str) -> None:
        table = self._table()
        found = _keyspace(table, keyspace)
        rows = [row for row in table.partitions if row.keyspace_id == found.id]
        problems: dict[Code, list[str]] = {}
        nodes = {node.id: node for node in table.nodes if node.state != NodeState.NODE_STATE_FAILED}
        # FAILED nodes don't count as in sync. They may still be in in-sync sets, since leaders take a node out only
        # after the controller has marked it.
        behind = [row for row in rows if row.leader not in nodes or len(nodes.keys() & row.isr) < found.min_insync]
        if behind:
            names = ", ".join(f"{keyspace}/{row.slot}" for row in behind[:10])
            text = f"{len(behind)} partitions have no leader, or too few replicas in sync: {names}"
            problems[Code.NOT_ENOUGH_REPLICAS] = [text]
        shares = _shares(rows, bytes_)
        asked = {
            node: self._pool.submit(self._files_at, nodes[node].address, 0) for node in sorted(shares) if node in nodes
        }
        for node, answer in asked.items():
            try:
                room, its_version = answer.result().room_bytes, answer.result().version
            except MinkaError as error:
                problems.setdefault(Code.UNREACHABLE, []).append(f"{node}: {error.message}")
                continue
            if room < shares[node]:
                text = f"{node} has room for {room:,} bytes and would get {shares[node]:,}"
                problems.setdefault(Code.DISK_FULL, []).append(text)
            if version and its_version != version:
                problems.setdefault(Code.INVALID_ARGUMENT, []).append(
                    f"{node} is of version {its_version}, not {version}"
                )
        for code in (Code.DISK_FULL, Code.NOT_ENOUGH_REPLICAS, Code.INVALID_ARGUMENT, Code.UNREACHABLE):
            if code in problems:
                raise MinkaError(code, "; ".join(text for texts in problems.values() for text in texts))

    # Files

    def upload(self, load: Load, target: LoadTarget, written: Written, name: str) -> LoadFile:
        """Upload a file to the nodes that have replicas of the partition, and return the row that names the file in the
        commit. `name` must differ for each attempt, and has letters, digits, _, dot and dash.

        When this returns, at least `min_insync` of the nodes have the file; nodes that are away get the file later from
        the other nodes. This waits for a node that restarts, and for a node that answers but is slow, since it may have
        other files to receive first, and the load may have a rate limit. Raises DISK_FULL at once, and
        NOT_ENOUGH_SPOOLS if too few nodes have answered within the timeout.
        """
        file = target.file(name)
        file.bytes, file.rows, file.checksum = written.bytes, written.digest.rows, written.checksum
        file.digest.CopyFrom(written.digest.to_proto())
        header = UploadHeader(load_id=load.id, load_number=load.number, file=file)
        deadline, enough = time.monotonic() + self._timeout, Event()
        uploads = {
            self._pool.submit(self._upload_to, address, header, written.path, deadline, enough): node
            for node, address in target.nodes
        }
        try:
            self._until_enough(uploads, target.needed, name, enough)
        finally:
            enough.set()
        return file

    def _until_enough(self, uploads: Mapping[Future[None], str], needed: int, name: str, enough: Event) -> None:
        waiting, failed, have = set(uploads), dict[str, MinkaError](), 0
        give_up: float | None = None
        while waiting and (give_up is None or time.monotonic() < give_up):
            done, waiting = wait(waiting, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            for upload in done:
                error = upload.exception()
                if error is None:
                    have += 1
                elif not isinstance(error, MinkaError):
                    raise error
                elif error.code in _FINAL:
                    raise MinkaError(error.code, f"{uploads[upload]}: {error.message}")
                else:
                    failed[uploads[upload]] = error
            if have >= needed and give_up is None:
                enough.set()
                give_up = time.monotonic() + _ENOUGH_SECONDS
        for upload in waiting:
            upload.cancel()
        if have < needed:
            reasons = "; ".join(f"{node}: {error.message}" for node, error in failed.items())
            text = f"{have} nodes have {name}, but {needed} must have it: {reasons}"
            raise MinkaError(Code.NOT_ENOUGH_SPOOLS, text)

    def _upload_to(self, address: str, header: UploadHeader, path: Path, deadline: float, enough: Event) -> None:
        """Upload the file to one node. Repeat a failed transfer until the timeout, unless enough other nodes have the
        file. If a transfer breaks off, the timeout begins again at the node's last answer.
        """
        attempt, heard = 0, _Heard(time.monotonic())
        while True:
            attempt += 1
            try:
                self._send(address, header, path, heard)
                return
            except MinkaError as error:
                failure = error
            # After CORRUPT_DATA the transfer is repeated, too: the receiver reports a transfer that broke off as a
            # damaged file.
            is_final = not failure.code.info.retriable and failure.code is not Code.CORRUPT_DATA
            if failure.code is Code.UNREACHABLE:
                deadline = max(deadline, heard.at + self._timeout)
            left = deadline - time.monotonic()
            if is_final or left <= 0 or enough.wait(min(left, delay_s(attempt, _RNG))):
                raise failure

    def _send(self, address: str, header: UploadHeader, path: Path, heard: "_Heard") -> None:
        """Send the file to a node. That may take hours, so other requests check meanwhile that the node still answers;
        `heard` gets the time of the last answer. Raises UNREACHABLE if the node is silent for long, and the node's
        refusals.
        """
        method: Any = self._channels.to(address).stream_unary(UPLOAD_METHOD)
        call, begun = method.future(_messages(header, path)), time.monotonic()
        while True:
            try:
                call.result(timeout=_LOOK_SECONDS)
                return
            except grpc.FutureTimeoutError:
                pass
            except (grpc.RpcError, grpc.FutureCancelledError) as error:
                raise error_from_call(call, address, repeatable=True) from error
            try:
                self._files_at(address, 0)
                heard.at = time.monotonic()
            except MinkaError as error:
                if time.monotonic() - max(begun, heard.at) > _SILENT_SECONDS:
                    call.cancel()
                    raise MinkaError(
                        Code.UNREACHABLE, f"{address} no longer answers while it receives the file: {error.message}"
                    ) from error

    def commit(self, load: Load, files: Iterable[LoadFile]) -> Load:
        """Commit the load: these files are taken in, all or none. If partitions were split or merged since the files
        were cut, the nodes make new files out of the old files; if replicas were moved, the new nodes fetch the files.
        Returns the load, which is COMMITTED or DONE. A load that was committed before is returned as it is, even if it
        has other files.

        Raises LOAD_ENDED, UNKNOWN_LOAD, NOT_ENOUGH_SPOOLS, DISK_FULL, UNKNOWN_FILE.
        """
        files, deadline = list(files), time.monotonic() + self._timeout
        attempt = 0
        while True:
            attempt += 1
            try:
                (known,) = self._patiently(lambda: self.control.loads([load.id])).loads
                if known.state != LoadState.LOAD_STATE_STAGING:
                    return self._patiently(lambda: self.control.commit_load(load.id, []))
                targets = self._targets_of(load)
                files = self._fitting(load, files, targets)
                self._spread(load, files, targets)
                return self.control.commit_load(load.id, files)
            except MinkaError as error:
                may_help = error.code.info.retriable or error.code in (
                    *(Code.STALE_LOAD, Code.NOT_ENOUGH_SPOOLS, Code.DEADLINE_EXCEEDED),
                )
                if not may_help or time.monotonic() > deadline:
                    raise
            time.sleep(delay_s(attempt, _RNG))

    # Files for partitions as they are now

    def _targets_of(self, load: Load) -> dict[int, LoadTarget]:
        table = self._table()
        keyspace = next(one for one in table.keyspaces if one.id == load.keyspace_id)
        addresses = {node.id: node.address for node in table.nodes}
        rows = (row for row in table.partitions if row.keyspace_id == load.keyspace_id)
        return {row.id: _target(keyspace, row, addresses) for row in rows}

    def _fitting(self, load: Load, files: list[LoadFile], targets: Mapping[int, LoadTarget]) -> list[LoadFile]:
        """Files for the present `targets`. Files that fit are returned as they are; nodes cut the others into new
        files.
        """
        fitting, others = list[LoadFile](), list[LoadFile]()
        for file in files:
            target = targets.get(file.partition_id)
            (fitting if target is not None and target.is_of(file) else others).append(file)
        for sources, ranges in _groups(others, targets.values()):
            fitting += self._cut(load, sources, ranges)
        return fitting

    def _cut(self, load: Load, sources: list[LoadFile], targets: list[LoadTarget]) -> list[LoadFile]:
        """Ask one node after the other to cut the sources into files for the targets, until one succeeds. A
        node first fetches, from other nodes, the sources that it lacks.
        """
        nodes = dict(node for target in targets for node in target.nodes)
        attempt = uuid.uuid4().hex[:8]
        wanted = [target.file(f"cut-{target.partition_id}-{attempt}") for target in targets]
        request = CutFilesRequest(load_number=load.number, sources=[one.name for one in sources], targets=wanted)
        failures: dict[str, MinkaError] = {}
        for node, address in nodes.items():
            try:
                for source in sources:
                    self._pull(address, load, source)
                return self._cut_at(address, request)
            except MinkaError as error:
                failures[node] = error
        text = "; ".join(f"{node}: {error.message}" for node, error in failures.items())
        code = (
            Code.DISK_FULL if any(one.code is Code.DISK_FULL for one in failures.values()) else Code.NOT_ENOUGH_SPOOLS
        )
        raise MinkaError(code, f"no node could cut the files of load {load.id} for the present partitions: {text}")

    def _cut_at(self, address: str, request: CutFilesRequest) -> list[LoadFile]:
        stub = SpoolStub(self._channels.to(address))
        return [*_asked(address, lambda: stub.CutFiles(request, timeout=_FILE_SECONDS)).files]

    def _spread(self, load: Load, files: list[LoadFile], targets: Mapping[int, LoadTarget]) -> None:
        """Make sure that enough nodes of each file's partition have the file: nodes that lack the file fetch it."""
        nodes = dict(node for file in files for node in targets[file.partition_id].nodes)
        asked = {node: self._pool.submit(self._files_at, address, load.number) for node, address in nodes.items()}
        there: dict[str, set[tuple[str, int]]] = {}
        for node, answer in asked.items():
            if answer.exception() is None:
                there[node] = {(file.name, file.checksum) for file in answer.result().files}
        for file in files:
            target = targets[file.partition_id]
            needed = target.needed
            have = sum((file.name, file.checksum) in there.get(node, ()) for node, _ in target.nodes)
            failures: list[str] = []
            for node, address in target.nodes:
                if have >= needed or (file.name, file.checksum) in there.get(node, ()):
                    continue
                try:
                    self._pull(address, load, file)
                    have += 1
                except MinkaError as error:
                    failures.append(f"{node}: {error.message}")
            if have < needed:
                text = f"{have} of partition {file.partition_id}'s nodes have {file.name}, but {needed} must have it: "
                raise MinkaError(Code.NOT_ENOUGH_SPOOLS, text + "; ".join(failures))

    def _pull(self, address: str, load: Load, file: LoadFile) -> None:
        request = PullFileRequest(load_number=load.number, file=file)
        stub = SpoolStub(self._channels.to(address))
        _asked(address, lambda: stub.PullFile(request, timeout=_FILE_SECONDS))

    def _files_at(self, address: str, number: int) -> ListFilesResponse:
        stub = SpoolStub(self._channels.to(address))
        request = ListFilesRequest(load_number=number)
        return _asked(address, lambda: stub.ListFiles(request, timeout=_ASK_SECONDS))

    # Used by all methods above

    def _table(self) -> PartitionTable:
        """The active controller's table. No other node's table is used, since it may be older than the table by which
        the controller decides on a commit.
        """

        def ask() -> PartitionTable:
            status = self.control.status()
            if not status.from_controller:
                raise MinkaError(Code.NO_CONTROLLER, f"{status.served_by} knows no active controller")
            return status.table

        return self._patiently(ask)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Call `ask` and return its result. If it fails with an error that may pass, repeat it until the timeout."""
        deadline, attempt = time.monotonic() + self._timeout, 0
        while True:
            attempt += 1
            try:
                return ask()
            except MinkaError as error:
                may_help = error.code.info.retriable or error.code is Code.DEADLINE_EXCEEDED
                if not may_help or time.monotonic() > deadline:
                    raise
            time.sleep(delay_s(attempt, _RNG))


def _messages(header: UploadHeader, path: Path) -> Iterator[bytes]:
    yield header.SerializeToString()
    with path.open("rb", buffering=0) as source:
        while chunk := source.read(_CHUNK_BYTES):
            yield chunk


def _asked(address: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except grpc.RpcError as error:
        raise error_from_call(error, address, repeatable=True) from error


def _keyspace(table: PartitionTable, name: str) -> Keyspace:
    for keyspace in table.keyspaces:
        if keyspace.name == name:
            return keyspace
    raise MinkaError(Code.UNKNOWN_KEYSPACE, f"there is no keyspace {name}", keyspace=name)


def _target(keyspace: Keyspace, row: Partition, addresses: Mapping[str, str]) -> LoadTarget:
    """The target for a partition. It leaves out nodes that will give their replicas away."""
    nodes = tuple((node, addresses[node]) for node in row.replicas if node not in row.removing_replicas)
    return LoadTarget(row.id, row.slot, KeyRange(row.start_key, row.end_key), nodes, keyspace.min_insync)


def _shares(rows: Sequence[Partition], bytes_: int) -> dict[str, int]:
    """The bytes that each node gets, if the `bytes_` bytes of a load are spread evenly over the partitions."""
    shares: dict[str, int] = {}
    for row in rows:
        for node in row.replicas:
            shares[node] = shares.get(node, 0) + bytes_ // max(1, len(rows))
    return shares


def _groups(
    files: Iterable[LoadFile], targets: Iterable[LoadTarget]
) -> Iterator[tuple[list[LoadFile], list[LoadTarget]]]:
    """Yield groups of files, each with the partitions that the files overlap. Each group is as small as possible."""
    left, ordered = sorted(files, key=lambda file: file.start_key), sorted(targets, key=lambda target: target.range)
    while left:
        sources = [left.pop(0)]
        taken: list[LoadTarget] = []
        while True:
            taken = [one for one in ordered if any(one.range.overlaps(_range(file)) for file in sources)]
            more = [file for file in left if any(one.range.overlaps(_range(file)) for one in taken)]
            if not more:
                break
            sources += more
            left = [file for file in left if file not in more]
        yield sources, taken


def _range(file: LoadFile) -> KeyRange:
    return KeyRange(file.start_key, file.end_key)
