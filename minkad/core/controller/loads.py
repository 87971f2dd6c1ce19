"""The beginning, the commit and the end of loads.

A commit checks that the partitions still are as they were when the files were made. Then no partition of the keyspace
is split or merged until all parts are taken in. So a part belongs to a partition and doesn't need a range of its own.
Partitions may still be moved. Keyspaces are never deleted, so a load's keyspace always exists.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from minka.cluster.in_sync import has_everything
from minka.cluster.key_ranges import is_by_ranges
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import Blocker
from minka.v1.cluster_pb2 import Keyspace, Partition
from minka.v1.load_api_pb2 import (
    AbortLoadRequest,
    BeginLoadRequest,
    CommitLoadRequest,
    FinishedPart,
    FinishLoadPartsRequest,
    LoadResponse,
    TouchLoadRequest,
)
from minka.v1.loads_pb2 import Load, LoadFile, LoadPart, LoadPartsAdded, LoadPartsDone, LoadState
from minka.v1.records_pb2 import Record
from minkad.core.controller.balancer import View
from minkad.core.controller.decision import OwnCommand, Steps
from minkad.core.state import State, partition_name, slices
from minkad.core.state.display_names import PAYLOADS_KEYSPACE

MAX_UNENDED: Final = 32
MAX_JOB_BYTES: Final = 8 * 1024
_NAMED: Final = 50  # partitions that a refusal names
_PARTS_A_RECORD: Final = 100  # about a millisecond of work
_FILES_A_STEP: Final = 500
_S = LoadState


def load_with(state: State, load_id: str) -> Load:
    """The load with this id. Raises UNKNOWN_LOAD."""
    load = state.loads.with_id(load_id)
    if load is None:
        raise MinkaError(Code.UNKNOWN_LOAD, f"there is no load {load_id}")
    return load


def _answer(state: State, load_id: str) -> LoadResponse:
    return LoadResponse(load=state.loads.with_id(load_id))


def begin(state: State, request: BeginLoadRequest, now_ms: int) -> Steps[LoadResponse]:
    """Begin a load, in state STAGING, unless it exists already. Raises UNKNOWN_KEYSPACE, INVALID_ARGUMENT, LOAD_EXISTS,
    TOO_MANY_LOADS.
    """
    keyspace = state.keyspace_named(request.keyspace)
    if keyspace is None:
        raise MinkaError(Code.UNKNOWN_KEYSPACE, f"there is no keyspace {request.keyspace}", keyspace=request.keyspace)
    if keyspace.name == PAYLOADS_KEYSPACE:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{PAYLOADS_KEYSPACE} is the cluster's own: nothing is loaded into it")
    if len(request.job.encode()) > MAX_JOB_BYTES:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the note about a job may have at most {MAX_JOB_BYTES} bytes")
    known = state.loads.with_id(request.load_id)
    if known is not None:
        if known.keyspace_id == keyspace.id:
            return LoadResponse(load=known)
        text = f"load {known.id} is of keyspace {state.keyspaces[known.keyspace_id].name}"
        raise MinkaError(Code.LOAD_EXISTS, text)
    unended = state.loads.unended()
    if len(unended) >= MAX_UNENDED:
        names = ", ".join(load.id for load in unended[:3])
        raise MinkaError(Code.TOO_MANY_LOADS, f"{len(unended)} loads have not ended, such as {names}")
    load = Load(
        id=request.load_id,
        number=state.loads.next_number,
        keyspace_id=keyspace.id,
        state=_S.LOAD_STATE_STAGING,
        requested_by=request.requested_by,
        created_ms=now_ms,
        touched_ms=now_ms,
        job=request.job,
        rate_limit=request.rate_limit,
    )
    yield [Record(load_changed=load)]
    return _answer(state, load.id)


def touch(state: State, request: TouchLoadRequest, now_ms: int) -> Steps[LoadResponse]:
    """Note that a job still works on a load in state STAGING; other loads don't change. Raises UNKNOWN_LOAD."""
    load = load_with(state, request.load_id)

    def change(row: Load) -> None:
        row.touched_ms = max(row.touched_ms, now_ms)

    if load.state == _S.LOAD_STATE_STAGING:
        yield [_changed(load, change)]
    return _answer(state, load.id)


def abort(state: State, request: AbortLoadRequest, now_ms: int) -> Steps[LoadResponse]:
    """Abort a load: it will not be taken in. Raises UNKNOWN_LOAD, and LOAD_ENDED once it is committed."""
    load = load_with(state, request.load_id)
    if load.state == _S.LOAD_STATE_ABORTED:
        return _answer(state, load.id)
    if load.state != _S.LOAD_STATE_STAGING:
        raise MinkaError(Code.LOAD_ENDED, f"load {load.id} is committed, so there is no way back")
    by = f"aborted by {request.requested_by or 'somebody unknown'}"
    yield [_aborted(load, f"{by}: {request.reason}" if request.reason else by, now_ms)]
    return _answer(state, load.id)


@dataclass(frozen=True, slots=True)
class AbortAbandoned(OwnCommand):
    """Loads that nobody has touched for `after_ms` milliseconds are to be aborted."""

    after_ms: int


def abort_abandoned(state: State, command: AbortAbandoned, now_ms: int) -> Steps[None]:
    """Abort the loads in state STAGING that nobody has touched for `after_ms`."""
    yield [
        _aborted(load, f"nobody has gone on with it for {(now_ms - load.touched_ms) // 1000} s", now_ms)
        for load in state.loads.unended()
        if load.state == _S.LOAD_STATE_STAGING and now_ms - load.touched_ms > command.after_ms
    ]


def _aborted(load: Load, outcome: str, now_ms: int) -> Record:
    def change(row: Load) -> None:
        row.state, row.outcome, row.finished_ms = _S.LOAD_STATE_ABORTED, outcome, now_ms

    return _changed(load, change)


def _changed(load: Load, change: Callable[[Load], None]) -> Record:
    row = Load()
    row.CopyFrom(load)
    change(row)
    return Record(load_changed=row)


# The commit


def commit(state: State, request: CommitLoadRequest, now_ms: int) -> Steps[LoadResponse]:
    """Commit a load, unless it is committed already: all of its files are recorded at once, or it is refused. Raises
    UNKNOWN_LOAD, LOAD_ENDED, and what `_check_files` raises.
    """
    load, files = load_with(state, request.load_id), request.files
    if load.state == _S.LOAD_STATE_ABORTED:
        raise MinkaError(Code.LOAD_ENDED, f"load {load.id} is over: {load.outcome}")
    if load.state != _S.LOAD_STATE_STAGING:
        return _answer(state, load.id)
    yield from _check_files(state, load, files)
    for some in slices(files, _PARTS_A_RECORD):
        yield [Record(load_parts_added=LoadPartsAdded(parts=[_part(load, file) for file in some]))]

    def change(row: Load) -> None:
        row.committed_ms = row.touched_ms = now_ms
        row.parts, row.rows = len(files), sum(file.rows for file in files)
        row.bytes = sum(file.bytes for file in files)
        row.state = _S.LOAD_STATE_COMMITTED if files else _S.LOAD_STATE_DONE
        row.finished_ms = 0 if files else now_ms

    yield [_changed(load, change)]
    return _answer(state, load.id)


def _check_files(state: State, load: Load, files: Sequence[LoadFile]) -> Steps[None]:
    """Raises RANGES_CHANGING, INVALID_ARGUMENT, and STALE_LOAD, which names some of the partitions for which the files
    were made.
    """
    keyspace = state.keyspaces[load.keyspace_id]
    _check_each_once(files)
    if is_by_ranges(keyspace):
        _check_at_rest(state, keyspace)
    stale: list[int] = []
    for some in slices(files, _FILES_A_STEP):
        stale += [file.partition_id for file in some if not _is_cut_for(state, keyspace, file)]
        yield []
    if stale:
        shown = ",".join(map(str, stale[:_NAMED]))
        text = f"{len(stale)} files of load {load.id} were cut for partitions that have changed: {shown}"
        raise MinkaError(Code.STALE_LOAD, text, partitions_changed=shown)


def _check_each_once(files: Sequence[LoadFile]) -> None:
    if len({file.partition_id for file in files}) < len(files):
        raise MinkaError(Code.INVALID_ARGUMENT, "several files of a load are for one partition")
    if not all(file.rows for file in files):
        raise MinkaError(Code.INVALID_ARGUMENT, "a file of a load has no rows")


def _check_at_rest(state: State, keyspace: Keyspace) -> None:
    """Raises RANGES_CHANGING while a partition is being split or merged: its keys may be in another partition's log, or
    in the logs of two partitions.
    """
    for id_ in (*state.partitions.splitting, *state.partitions.merging):
        row = state.partitions[id_]
        if row.keyspace_id == keyspace.id:
            raise MinkaError(Code.RANGES_CHANGING, f"{partition_name(state.keyspaces, row)} is being split or merged")


def _is_cut_for(state: State, keyspace: Keyspace, file: LoadFile) -> bool:
    row = state.partitions.get(file.partition_id)
    if row is None or row.keyspace_id != keyspace.id:
        return False
    if is_by_ranges(keyspace):
        return (file.start_key, file.end_key) == (row.start_key, row.end_key)
    return file.slot == row.slot


def _part(load: Load, file: LoadFile) -> LoadPart:
    return LoadPart(
        load_number=load.number,
        partition_id=file.partition_id,
        name=file.name,
        bytes=file.bytes,
        rows=file.rows,
        checksum=file.checksum,
        digest=file.digest,
    )


# After the commit


def finish_parts(state: State, request: FinishLoadPartsRequest, now_ms: int) -> Steps[None]:
    """Record the parts that leaders have taken in; with the last part the load is DONE. Reports of a node that no
    longer leads the partition don't count: the present leader reports the part, too.
    """
    by_load: dict[int, dict[int, None]] = {}
    for one in request.finished:
        if _is_finished(state, request.node_id, one):
            by_load.setdefault(one.load_number, {})[one.partition_id] = None
    records = []
    for number, partition_ids in by_load.items():
        row = Load()
        row.CopyFrom(state.loads.rows[number])
        row.parts_done += len(partition_ids)
        if row.parts_done == row.parts:
            row.state, row.finished_ms = _S.LOAD_STATE_DONE, now_ms
        records.append(Record(load_parts_done=LoadPartsDone(load=row, partition_ids=partition_ids)))
    yield records


def _is_finished(state: State, node_id: str, one: FinishedPart) -> bool:
    row = state.partitions.get(one.partition_id)
    part = state.loads.parts.get(one.load_number, {}).get(one.partition_id)
    if row is None or part is None or part.done:
        return False
    return (row.leader, row.leader_epoch) == (node_id, one.leader_epoch)


class AbandonedLoads:
    """A balancer that aborts the loads of jobs that have died, so that nobody has to clean up after them."""

    def due(self, view: View) -> AbortAbandoned | None:
        """The command, if any load is STAGING; `abort_abandoned` decides which loads are due."""
        after = int(view.abandon_loads_after * 1000)
        staged = (load.state == _S.LOAD_STATE_STAGING for load in view.state.loads.unended())
        return AbortAbandoned(after) if after and any(staged) else None


def load_blockers(state: State, load: Load) -> Iterator[Blocker]:
    """The reasons why parts of a committed load aren't taken in, as far as the table shows them."""
    for part in state.loads.parts.get(load.number, {}).values():
        row = state.partitions.get(part.partition_id)
        if part.done or row is None or row.leader:
            continue
        yield blocker(state, row, "no live node can lead it", f"start {' or '.join(has_everything(row))}")


def blocker(state: State, row: Partition, reason: str, remedy: str = "") -> Blocker:
    """A blocker that says why a partition can't take in its part yet."""
    return Blocker(partition_id=row.id, partition=partition_name(state.keyspaces, row), reason=reason, remedy=remedy)
