"""The clients' writes and the answers to them, and the keys that replicas must have. Clients write a key only once,
except keys that a load has brought.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from minka.cluster.in_sync import has_everything
from minka.cluster.key_ranges import KeyRange, is_by_ranges
from minka.errors import MinkaError
from minka.v1.cluster_pb2 import Durability, Keyspace, Partition
from minka.wire.kv_frames import UNDECODABLE, Group, Op, StoredWrite, WriteBody
from minka.wire.stored_values import value_of, values_of
from minkad.core.clearance import CLOCK_RATIO
from minkad.core.replication.entries import IngestMark, TrimToRange, decode_entry
from minkad.core.replication.replica_state import Role
from minkad.core.state import State, range_of
from tests.simulation.replica_files import entry_keys, epoch_of, mark_in, offset_of, partition_of, partitions_in
from tests.simulation.trace import Violation

if TYPE_CHECKING:
    from tests.simulation.data_database import SimDataDatabase
    from tests.simulation.full_world import FullWorld
    from tests.simulation.log_disk import LogDisk
    from tests.simulation.process import Machine, Process

OPERATED = b"~"  # a part of each key of `OperationClients`; these clients check their own history
_BODY = 4  # an entry's body begins here, after its leader_epoch
_MARK = b"\xc1"  # the first byte of a mark's body


@dataclass(slots=True)
class _Group:
    """The keys of one keyspace by ranges, or of one partition of a keyspace by hash."""

    known: dict[bytes, bytes]  # acknowledged or read values
    open: dict[bytes, bytes]  # values whose outcome is unknown, or that a fault may have lost
    refused: set[bytes]
    rewritten: set[bytes]  # keys of loads that clients have written after the load
    either: dict[bytes, bytes]  # values that may replace, or may have replaced, a known value
    files: dict[bytes, bytes]  # by key: the name of the load's file that brought the key, as in the mark
    loaded: dict[bytes, bytes]  # by key: the value in the load's file
    since: dict[bytes, float]  # by key: when the value in `known` became known
    doubtful: set[bytes]  # keys of unsynced writes that a power cut may have lost, acknowledged or not


def _new_group() -> _Group:
    return _Group({}, {}, set(), set(), {}, {}, {}, {}, set())


class DataOracle:
    """Compares the answers to clients with the replicas' data. Its methods raise Violation."""

    def __init__(self, world: "FullWorld") -> None:
        self._world = world
        self._groups: defaultdict[int, _Group] = defaultdict(_new_group)
        self._epochs: dict[tuple[int, int], str] = {}  # by partition and leader_epoch: the node that led
        self._unclean_epochs: dict[int, int] = {}  # by partition: the leader_epoch of its last unclean election
        self.acknowledged_at: dict[int, float] = {}  # by partition: the time of the last acknowledgement
        self.acknowledged = 0

    def _group(self, row: Partition) -> _Group:
        keyspace = self._keyspace(row)
        return self._groups[-keyspace.id if is_by_ranges(keyspace) else row.id]

    def _keyspace(self, row: Partition) -> Keyspace:
        return self._world.keyspaces[row.keyspace_id]

    def _is_async(self, row: Partition) -> bool:
        return self._keyspace(row).durability == Durability.DURABILITY_ASYNC

    def known_in(self, row: Partition) -> dict[bytes, bytes]:
        """The acknowledged pairs of the partition."""
        return _within(self._group(row).known, range_of(row))

    def open_in(self, row: Partition) -> dict[bytes, bytes]:
        """The pairs that the partition may or may not have."""
        return _within(self._group(row).open, range_of(row))

    # Events at clients

    def begins(self, row: Partition, pairs: Mapping[bytes, bytes]) -> None:
        """Note that a client sends a write."""
        group = self._group(row)
        for key, value in pairs.items():
            if key in group.known:
                group.rewritten.add(key)
                group.either[key] = value
            else:
                group.open[key] = value

    def brings(self, row: Partition, pairs: Mapping[bytes, bytes], file: str) -> None:
        """Note that a committed load will bring these pairs."""
        group = self._group(row)
        group.open.update(pairs)
        group.files.update(dict.fromkeys(pairs, file.encode()))
        group.loaded.update(pairs)

    def has_brought(self, row: Partition, pairs: Mapping[bytes, bytes]) -> None:
        """Note that the partition has taken in the load, and check that each replica in sync has the load's rows. If a
        client has written one of the load's keys since the commit, the client's value counts.
        """
        group = self._group(row)
        self._know(row, {key: value for key, value in pairs.items() if key in group.open})
        for node in row.isr:
            self._check_has(self._world.machine(node), row, pairs.keys() & group.known.keys())

    def rewritable(self, row: Partition) -> list[bytes]:
        """Keys that a load has brought, and that no client has written since then."""
        group = self._group(row)
        return [key for key in self.known_in(row) if key in group.files and key not in group.rewritten]

    def acknowledges(self, process: "Process", row: Partition, pairs: Mapping[bytes, bytes]) -> None:
        """Note that a client's write is acknowledged, and check that each replica in sync has it, as durably as the
        keyspace demands. If the leader hasn't heard of an unclean election yet, the write may be lost.
        """
        if process.rows[row.id].leader_epoch < self._unclean_epochs.get(row.id, 0):
            return
        self._know(row, pairs)
        self.acknowledged += 1
        self.acknowledged_at[row.id] = self._world.now
        self._check_leader(process, row, next(iter(pairs)))
        known = self._group(row).known
        # If a split was recorded while the leader was paused, other partitions have some of the keys.
        for recorded in self._world.rows.values():
            keys = [key for key in pairs if key in known and range_of(recorded).contains(key)]
            if recorded.id == row.id:
                nodes = self._in_sync(process, row.id)
            elif recorded.keyspace_id == row.keyspace_id and range_of(recorded) != KeyRange():
                nodes = has_everything(recorded)
            else:
                continue
            for node in nodes if keys else ():
                self._check_has(self._world.machine(node), recorded, keys)

    def _know(self, row: Partition, pairs: Mapping[bytes, bytes]) -> None:
        group = self._group(row)
        for key, value in pairs.items():
            if key not in group.doubtful:
                group.open.pop(key, None)
                group.either.pop(key, None)
                if group.known.get(key) != value:
                    group.since[key] = self._world.now
                group.known[key] = value

    def refuses(self, row: Partition, keys: Iterable[bytes]) -> None:
        """Note that a client's write was refused: no replica may have it, now or later."""
        group = self._group(row)
        for key in keys:
            if group.either.pop(key, None) is None and group.open.pop(key, None) is not None:
                group.refused.add(key)

    def reads(
        self,
        process: "Process",
        row: Partition,
        expected: Mapping[bytes, bytes],
        maybe: Mapping[bytes, bytes],
        found: Mapping[bytes, bytes | None],
    ) -> None:
        """Check the answer to a client's read. When the client asked, the pairs of `expected` were acknowledged, and
        the outcome of `maybe` was unknown. The answer may also have writes that came later.
        """
        group = self._group(row)
        for key, value in found.items():
            if value is not None:
                if key in group.open or group.either.get(key) == value:
                    self._know(row, {key: value})
                now = (group.known.get(key), group.open.get(key), group.either.get(key))
                if value not in now and value not in (expected.get(key), maybe.get(key)):
                    text = f"{process.machine.id} has {value!r} at {key!r} of partition {row.id}"
                    raise Violation("the last write is there, and no refused one", text)
            elif key in expected and key in group.known:
                text = f"{process.machine.id} serves partition {row.id} without {key!r}, which was acknowledged"
                raise Violation("nothing acknowledged is lost", text)

    def check_age(self, process: "Process", partition_id: int) -> None:
        """Check the answer that the process's replica would give to a stale read now. The answer states its age: it
        must show every write that was acknowledged before then, and no refused write.
        """
        replica = process.manager.replicas.get(partition_id)
        if (
            replica is None
            or replica.state.role is Role.REMOVED
            or replica.state.row.keyspace_id not in self._world.keyspaces
        ):
            return
        data = cast("SimDataDatabase", replica.data)
        if not data.is_open or data.is_attached:
            return
        routing = process.manager.routing
        try:
            routing.stale(Group(Op.READ_STALE, partition_id, replica.state.row.generation, b""))
        except MinkaError:
            return
        age = routing.age(replica)
        moment, row = self._world.now - age * CLOCK_RATIO, replica.state.row
        group = self._group(row)
        for key, value in _within(group.known, range_of(row)).items():
            found = data.rows.get(key)
            if group.since[key] <= moment and (found is None or value_of(found) not in (value, group.either.get(key))):
                raise Violation(
                    "a stale read is at most as old as it says",
                    f"{process.machine.id}, {replica.state.role.value} of partition {row.id}, has {found!r} at {key!r} "
                    f"and says that it is {age:.3f} s old, but {value!r} is "
                    f"{self._world.now - group.since[key]:.3f} s old",
                )

    # The data of replicas

    def _in_sync(self, process: "Process", partition_id: int) -> list[str]:
        """The nodes that are in sync or eligible, by the table or by the process's own row. Nodes that are to delete
        their copies are left out, since the copies may be gone already.
        """
        recorded = self._world.rows.get(partition_id)
        if recorded is None:
            return []  # the partition was merged into another partition
        kept = {*recorded.replicas} - {*recorded.removing_replicas}
        own = process.rows.get(partition_id)
        return sorted({*has_everything(recorded), *(has_everything(own) if own is not None else ())} & kept)

    def check_in_sync(self, row: Partition) -> None:
        """Check, for a newly recorded row, that each in-sync or eligible replica has all acknowledged writes."""
        keys = self.known_in(row)
        for node in has_everything(row):
            self._check_has(self._world.machine(node), row, keys)

    def _check_has(self, machine: "Machine", row: Partition, keys: Collection[bytes]) -> None:
        is_async, files = self._is_async(row), self._group(row).files
        if missing := _missing(machine, row, keys, files, durably=not is_async):
            raise Violation(
                "replicas in sync have all acknowledged writes",
                f"{machine.id} hasn't {'written' if is_async else 'synced'} {missing[0]!r} and {len(missing) - 1} "
                f"more of {len(keys)} keys of partition {row.id}",
            )

    def _check_leader(self, process: "Process", row: Partition, key: bytes) -> None:
        """Check that no other node ever led at the leader_epoch of an acknowledged entry."""
        disk = process.machine.log_disk
        for entry in reversed(entry_keys(disk, row.id)):
            value = disk.get(entry) or b""
            if key in value:
                epoch, mine = epoch_of(value), process.machine.id
                holder = self._epochs.setdefault((row.id, epoch), mine)
                if holder != mine:
                    raise Violation(
                        "one holder of clearance per partition and leader_epoch",
                        f"{mine} has acknowledged a write of partition {row.id} at leader_epoch {epoch}, at which "
                        f"{holder} led",
                    )
                return

    def claims_loss(self, process: "Process", partition_id: int, committed: int) -> None:
        """Check a follower's claim that its leader lacks entries up to `committed`. Because of this claim, the follower
        will replace its copy. So the claim must be true: at least one of these entries is missing in the leader's log.
        """
        follower = process.manager.replicas[partition_id]
        other = self._world.machine(follower.state.row.leader).process
        leader = other.manager.replicas.get(partition_id) if other is not None else None
        if (
            leader is None
            or leader.state.row.leader_epoch != follower.state.row.leader_epoch
            or leader.log.base > committed
        ):
            return
        if leader.log.common_end(follower.log.lineage(), committed) == committed:
            raise Violation(
                "a follower is right that its leader lacks entries",
                f"{process.machine.id} says that {follower.state.row.leader} lacks committed entries of partition "
                f"{partition_id} up to {committed}, but {follower.state.row.leader} has them all",
            )

    def lose(self, row: Partition) -> None:
        """Note the keys that an unclean election may have lost: the new leader lacks their entries or, in a `sync`
        keyspace, hasn't synced them.
        """
        self._unclean_epochs[row.id] = row.leader_epoch
        group = self._group(row)
        there = _after_log(self._world.machine(row.leader), row.id, durably=not self._is_async(row))
        for key, value in self.known_in(row).items():
            loaded = group.loaded.get(key)
            found = there.get(key, loaded if group.files.get(key) in there else None)
            if found != value:
                self._doubt(group, [key])
                if found is not None:
                    group.either[key] = found

    def cut_power(self, machine: "Machine") -> None:
        """Note that a power cut may have lost the writes to `async` keyspaces that this machine had not synced. If a
        lost write replaced a value from a load, reads return the load's value again.
        """
        disk = machine.log_disk
        for row in self._world.rows.values():
            if machine.id in row.replicas and self._is_async(row):
                volatile = [disk.get(key) or b"" for key in entry_keys(disk, row.id) if not disk.is_durable(key)]
                group, keys = self._group(row), [key for value in volatile for key in _keys_in(value)]
                group.doubtful.update(keys)
                self._doubt(group, keys)
                for key in group.loaded.keys() & keys:
                    group.either.setdefault(key, group.loaded[key])

    def _doubt(self, group: _Group, keys: Iterable[bytes]) -> None:
        for key in keys:
            if key in group.known:
                group.open[key] = group.known.pop(key)

    def cut(self, machine: "Machine", start: bytes, end: bytes) -> None:
        """Check the entries that a replica is about to remove from its log. If the replica is in sync or eligible, it
        must have flushed the acknowledged entries among them.
        """
        id_ = partition_of(start)
        row = self._world.rows.get(id_)
        if row is None or machine.id not in has_everything(row) or machine.id in row.removing_replicas:
            return
        image, known = machine.data_disk.folders.get(id_), self.known_in(row)
        flushed = image.applied.offset if image is not None else 0
        for key in machine.log_disk.keys(start, end):
            pairs = _pairs_in(machine.log_disk.get(key) or b"")
            if offset_of(key) > flushed and any(pair in known.items() for pair in pairs):
                raise Violation(
                    "the log keeps committed entries",
                    f"{machine.id} removes the acknowledged entry {offset_of(key)} of partition {id_}, but has "
                    f"flushed only the entries up to {flushed}",
                )

    # The end

    def missing(self, state: State) -> str:
        """Check all replicas at the end of a run, when no client writes; returns the first error, or ""."""
        for row in state.partitions.values():
            group = self._group(row)
            known, maybe, refused = self.known_in(row), self.open_in(row), group.refused
            contents = {node: _content(self._world.machine(node), row.id) for node in row.replicas}
            for node, stored in contents.items():
                rows = _values(stored)
                if lost := known.keys() - rows.keys():
                    return f"{node} lacks {min(lost)!r} of partition {row.id}"
                if refused & rows.keys():
                    text = f"{node} has {min(refused & rows.keys())!r} of partition {row.id}"
                    raise Violation("the last write is there, and no refused one", text)
                if old := [key for key, value in known.items() if rows[key] not in (value, group.either.get(key))]:
                    text = f"{node} has {rows[old[0]]!r} at {old[0]!r} of partition {row.id}"
                    raise Violation("the last write is there, and no refused one", text)
                mine = {key for key in rows if OPERATED not in key}
                if alien := mine - known.keys() - maybe.keys():
                    return f"{node} has {min(alien)!r} in partition {row.id}, though the key doesn't belong there"
            first = contents[row.replicas[0]]
            if other := [node for node, rows in contents.items() if rows != first]:
                return f"{row.replicas[0]} and {other[0]} have different rows of partition {row.id}"
        return self._unwanted(state)

    def _unwanted(self, state: State) -> str:
        for machine in self._world.machines:
            there = [*partitions_in(machine.log_disk), *machine.data_disk.folders]
            for id_ in there:
                row = state.partitions.get(id_)
                if row is None or machine.id not in row.replicas:
                    return f"{machine.id} has a log or data of partition {id_}, but no row places the partition there"
        return ""


def _within(pairs: Mapping[bytes, bytes], range_: KeyRange) -> dict[bytes, bytes]:
    if range_ == KeyRange():
        return dict(pairs)
    return {key: value for key, value in pairs.items() if range_.contains(key)}


def _missing(
    machine: "Machine", row: Partition, keys: Collection[bytes], files: Mapping[bytes, bytes], *, durably: bool
) -> list[bytes]:
    """Return the `keys` that are neither in the partition's data nor in its log on the machine's disk. While a split
    creates the partition, its parent's data and log on this machine count, too.
    """
    missing = list(keys)
    for id_ in (row.id, row.split_from if row.splitting else 0):
        image = machine.data_disk.folders.get(id_)
        if missing and image is not None:
            missing = [key for key in missing if key not in image.rows]
        if missing:
            log = _log(machine.log_disk, id_, durably=durably)
            missing = [key for key in missing if key not in log and files.get(key, key) not in log]
    return missing


def _log(disk: "LogDisk", partition_id: int, *, durably: bool) -> bytes:
    """All entries of the partition's log, joined."""
    keys = entry_keys(disk, partition_id)
    return b"".join([disk.get(key) or b"" for key in keys if not durably or disk.is_durable(key)])


def _after_log(machine: "Machine", partition_id: int, *, durably: bool) -> dict[bytes, bytes | None]:
    """The rows that a replica will have when it has applied its log, and the names of the files in the log's marks."""
    image, disk = machine.data_disk.folders.get(partition_id), machine.log_disk
    rows: dict[bytes, bytes | None] = {} if image is None else dict(_values(image.rows))
    applied = image.applied.offset if image is not None else 0
    for entry in entry_keys(disk, partition_id):
        if offset_of(entry) <= applied or (durably and not disk.is_durable(entry)):
            continue
        mark = mark_in(disk.get(entry) or b"")
        if isinstance(mark, TrimToRange):
            rows = {key: value for key, value in rows.items() if mark.range.contains(key)}
        elif isinstance(mark, IngestMark):
            rows[mark.name.encode()] = b""
        elif mark is None:
            rows.update(_pairs_in(disk.get(entry) or b""))
    return rows


def _values(rows: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    return {key: value_of(row) for key, row in rows.items()}


def _keys_in(entry: bytes) -> list[bytes]:
    return [key for key, _ in _pairs_in(entry)]


def _pairs_in(entry: bytes) -> list[tuple[bytes, bytes | None]]:
    body = entry[_BODY:]
    if body and not body.startswith(_MARK):
        try:
            write = decode_entry(body)
        except UNDECODABLE as error:
            raise Violation("entries can be read", repr(body)) from error
        assert isinstance(write, WriteBody), write
        values = values_of(write.values) if isinstance(write, StoredWrite) else write.values
        return list(zip(write.keys, values, strict=True))
    return []


def _content(machine: "Machine", partition_id: int) -> Mapping[bytes, bytes]:
    """The rows that a replica has applied, in their stored form."""
    process = machine.process
    data = process.store.open.get(partition_id) if process is not None and process.built else None
    if data is not None and data.is_open:
        return data.rows
    image = machine.data_disk.folders.get(partition_id)
    return image.rows if image is not None else {}
