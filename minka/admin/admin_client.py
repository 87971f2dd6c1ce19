"""`Admin`, with which a program administers a cluster."""

import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from minka.admin.cluster_rows import DrainStatus, Node, Partition
from minka.admin.control import Control
from minka.admin.keyspace_rows import Durability, HashFunction, Keyspace, KeyspaceSummary, keyspace_of, keyspaces_of
from minka.admin.membership import have_seats, is_gone, leads, wait_until
from minka.admin.operation_rows import Blocker, Election, Migration, Operation, operation_of
from minka.admin.partition_arguments import AnyPartition, partition_id, partition_ids
from minka.admin.plans import Plan, message_of, plan_of
from minka.admin.requester import requester
from minka.contexts import given_or_resolved
from minka.engine.arguments import checked_timeout, invalid
from minka.engine.grpc_calls import clipped
from minka.engine.messages import checked_number, read, read_all
from minka.engine.requests import checked_whole, made
from minka.errors import Code, DeadlineExceeded, MinkaError, Unavailable
from minka.tls import Tls
from minka.v1 import admin_pb2, cluster_pb2

_POLL_S: Final = 0.2
_MOST_OPERATIONS: Final = 1000


class Admin:
    """The administration of one cluster, for one thread at a time.

    `endpoints` are addresses host:port of some of the cluster's nodes. Without `endpoints`, `Admin` uses the cluster of
    `context`, or the cluster that `minka.connect` would find. A method finishes within `timeout` seconds, unless it has
    a `timeout` of its own. (`partitions`, `split_keys`, and calls that find partitions by name have `timeout` seconds
    for each step.) A method raises only `MinkaError`. The codes are those that the method's description names;
    UNREACHABLE, NO_CONTROLLER or DEADLINE_EXCEEDED if no node could answer; and OUTCOME_UNKNOWN if the answer to a
    change was lost. If a change takes longer than one call, the method returns an `Operation`, which goes on even if
    this client is gone; `wait` waits for its end. `requested_by` is recorded when an operation begins or is cancelled,
    and logged with an unclean election; the default is user@host.

    `nodes`, `keyspaces` and `partitions` read the partition table. If no active controller answers (for example while
    a majority of the coordinator's voters is down), another node answers with its own table. That table may be old: it
    may show a failed node as LIVE, and a partition without a leader as ONLINE. `Node.heartbeat_age_ms` is then None
    for all nodes.

    A partition is given as a `Partition`, by its name (as in plans: "flights/7"), or by its id. Keyspaces can't be
    deleted. There is no class for asyncio: use `asyncio.to_thread`.
    """

    def __init__(
        self,
        endpoints: Sequence[str] | None = None,
        *,
        context: str | None = None,
        timeout: float = 5.0,
        tls: Tls | None = None,
        requested_by: str | None = None,
    ) -> None:
        endpoints, tls = given_or_resolved(endpoints, tls, context)
        self._timeout: Final = checked_timeout(timeout)
        self.control: Final = Control(endpoints, timeout, tls=tls)  # lower layer: for views that show whole messages
        self._requester: Final = requester() if requested_by is None else requested_by

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The client can't be used again."""
        self.control.close()

    # Nodes

    def nodes(self) -> list[Node]:
        """All nodes. Without an active controller the answer may be old, see `Admin`."""
        status = self.control.summary()
        counts = {one.node_id: one for one in status.summary.nodes}
        heard = {one.node_id: one.heartbeat_age_ms for one in status.nodes if one.HasField("heartbeat_age_ms")}
        return [
            read(
                Node,
                row,
                weight=row.weight or 1,
                is_voter=row.id in status.coordinator.voters,
                is_controller=row.id == status.coordinator.controller,
                replicas=counts[row.id].replicas,
                leads=counts[row.id].leads,
                bytes=counts[row.id].bytes,
                heartbeat_age_ms=heard.get(row.id),
            )
            for row in status.table.nodes
        ]

    def drain(
        self,
        node: str,
        *,
        decommission: bool = False,
        reason: str = "",
        rate_limit: int = 0,
        queue: bool = False,
    ) -> Operation:
        """Make a node safe to stop: it hands over all that it leads, and with `decommission` also all its data. A drain
        starts at once, and stays in force until `undrain`; `plan_reassign(drain=…)` only makes one plan that moves data
        away from a node. `rate_limit`, in bytes a second (0: no limit), is the most that each node ships for the drain.
        With `queue` the drain waits for operations that touch the same partitions or duties.

        Raises UNKNOWN_NODE, OPERATION_RUNNING, NO_SOURCE, and NOT_ENOUGH_NODES if the other nodes can't take its data.
        """
        started = self.control.drain(
            node, decommission, requested_by=self._requester, reason=reason, rate_limit=rate_limit, queue=queue
        )
        return operation_of(started)

    def undrain(self, node: str) -> None:
        """Take back a drain, so that the node is used again; if the drain has not ended, it is cancelled. Raises
        UNKNOWN_NODE.
        """
        self.control.undrain(node, self._requester)

    def drain_status(self, node: str) -> DrainStatus:
        """The effects of stopping the node now. Raises UNKNOWN_NODE."""
        return read(DrainStatus, self.control.drain_status(node))

    def remove_node(self, node: str, *, timeout: float = 30.0) -> None:
        """Remove from the cluster a node that is down and holds nothing, and wait until it has also left the Raft
        group. The node can't come back with its old data. Raises UNKNOWN_NODE, NODE_IN_USE, and DEADLINE_EXCEEDED if
        the removal isn't done within `timeout` seconds.
        """
        seconds = checked_timeout(timeout)
        self.control.remove_node(node)
        wait_until(lambda status: is_gone(status, node), self.control, f"{node} is no longer a member", seconds)

    def transfer_leadership(self, node: str, *, timeout: float = 30.0) -> None:
        """Let this voter become the active controller, and wait until it leads. Raises UNKNOWN_NODE, INVALID_VOTERS,
        and DEADLINE_EXCEEDED if it doesn't lead within `timeout` seconds.
        """
        seconds = checked_timeout(timeout)

        def ask() -> None:
            self.control.transfer_leadership(node)

        ask()
        what = f"{node} is the active controller"
        wait_until(lambda status: leads(status, node), self.control, what, seconds, ask)

    def change_voters(self, *, promote: Sequence[str] = (), demote: Sequence[str] = (), timeout: float = 30.0) -> None:
        """Make the learners in `promote` voters, and the voters in `demote` learners, with one change of the Raft
        group, and wait until the change is done. Raises UNKNOWN_NODE, INVALID_VOTERS, VOTERS_CHANGING, and
        DEADLINE_EXCEEDED if it isn't done within `timeout` seconds.
        """
        seconds = checked_timeout(timeout)

        def ask() -> None:
            self.control.change_voters(promote, demote)

        ask()
        what = " and ".join([f"{one} is a voter" for one in promote] + [f"{one} is a learner" for one in demote])
        wait_until(lambda status: have_seats(status, promote, demote), self.control, what, seconds, ask)

    # Keyspaces and partitions

    def keyspaces(self) -> list[KeyspaceSummary]:
        """All keyspaces, including the `internal` ones, in the order in which they were created. Without an active
        controller the answer may be old, see `Admin`.
        """
        return keyspaces_of(self.control.summary())

    def create_keyspace(
        self,
        name: str,
        *,
        partitions: int | None = None,
        hash_function: HashFunction = HashFunction.MURMUR3,
        split_points: Sequence[bytes] | None = None,
        replicas: int | None = None,
        min_insync: int | None = None,
        durability: Durability = Durability.SYNC,
        unclean_election: bool = False,
        max_bytes: int | None = None,
        max_ops: int | None = None,
    ) -> Keyspace:
        """Create a keyspace. With `partitions` it is by hash, and its number of partitions never changes. With
        ascending `split_points` it is by ranges ([]: one range over all keys). A range of more than `max_bytes` (at
        least 65,536), or with more than `max_ops` keys read and written a second (at least 100), is split
        automatically. A name has 1 to 63 characters (a-z, 0-9, _ and -), and begins with a letter.

        The default of `replicas` is 3 in a cluster of three nodes or more, else 1. The default of `min_insync` is a
        majority of the replicas if there are three or more, else 1. Raises KEYSPACE_EXISTS, NOT_ENOUGH_NODES,
        TOO_MANY_REPLICAS, INVALID_ARGUMENT, EMPTY_SPLIT_POINT, DUPLICATE_SPLIT_POINT, UNSORTED_SPLIT_POINTS.
        """
        if (partitions is None) == (split_points is None):
            raise invalid("give either partitions, for a keyspace by hash, or split_points, for a keyspace by ranges")
        if split_points is None and (max_bytes is not None or max_ops is not None):
            raise invalid("max_bytes and max_ops are only for a keyspace by ranges: a keyspace by hash is never split")
        if split_points is not None and hash_function != HashFunction.MURMUR3:
            raise invalid("hash_function is only for a keyspace by hash")
        created = self.control.create_keyspace(
            name,
            _counted(partitions, "partitions"),
            checked_number(cluster_pb2.HashFunction, HashFunction, hash_function, "hash_function"),
            _counted(replicas, "replicas"),
            min_insync=_counted(min_insync, "min_insync"),
            durability=checked_number(cluster_pb2.Durability, Durability, durability, "durability"),
            unclean_election=unclean_election,
            split_points=split_points,
            max_bytes=_counted(max_bytes, "max_bytes"),
            max_ops=_counted(max_ops, "max_ops"),
        )
        count = created.partition_count if split_points is None else len(split_points) + 1
        return keyspace_of(created, count)

    def partitions(self, keyspace: str | None = None) -> Iterator[Partition]:
        """Yield the partitions of a keyspace (None: of all keyspaces), in the order of their slots or keys. This reads
        them page by page. Without an active controller the answer may be old, see `Admin`. Raises UNKNOWN_KEYSPACE.
        """
        wanted = made(admin_pb2.PartitionFilter, keyspace=keyspace) if keyspace is not None else None
        listed = self.control.partitions(wanted)
        names = {row.id: row.name for row in listed.status.table.keyspaces}
        if keyspace is not None and keyspace not in names.values():
            raise MinkaError(Code.UNKNOWN_KEYSPACE, f"keyspace {keyspace!r} does not exist")
        for page in listed:
            sizes = {one.partition_id: one for one in page.replicas}
            for row in page.partitions:
                size, name = sizes.get(row.id), names[row.keyspace_id]
                yield read(
                    Partition,
                    row,
                    keyspace=name,
                    name=f"{name}/{row.slot}",
                    keys=size.keys if size else None,
                    bytes=size.bytes if size else None,
                )

    def split(self, keyspace: str, keys: Sequence[bytes], *, reason: str = "", queue: bool = False) -> Operation | None:
        """Let new partitions of a keyspace by ranges begin at these keys, in any order. Returns None if partitions
        begin at all of these keys already. Raises UNKNOWN_KEYSPACE, NOT_BY_RANGES, EMPTY_SPLIT_POINT,
        DUPLICATE_SPLIT_POINT, TOO_LARGE, OPERATION_RUNNING.
        """
        started = self.control.split(keyspace, keys, self._requester, reason, queue=queue)
        return operation_of(started) if started is not None else None

    def merge(self, keyspace: str, keys: Sequence[bytes], *, reason: str = "", queue: bool = False) -> Operation:
        """Merge each partition that begins at one of these keys into the partition before it. Raises UNKNOWN_KEYSPACE,
        NOT_BY_RANGES, NO_BOUND, DUPLICATE_SPLIT_POINT, MERGE_REFUSED, OPERATION_RUNNING.
        """
        return operation_of(self.control.merge(keyspace, keys, self._requester, reason, queue=queue))

    def split_keys(self, partition: Partition | str | int, parts: int) -> list[bytes]:
        """Keys at which `split` can divide a partition of a keyspace by ranges into `parts` parts of about the same
        size in bytes. The partition's leader proposes them. Raises UNKNOWN_PARTITION, PARTITION_OFFLINE, NO_SPLIT_KEY.
        """
        id_ = partition_id(self.control, partition)
        listed = self.control.partitions(admin_pb2.PartitionFilter(ids=[id_])).whole()
        row = next(iter(listed.table.partitions), None)
        if row is None:
            raise MinkaError(Code.UNKNOWN_PARTITION, f"no partition has the id {id_}")
        address = next((node.address for node in listed.table.nodes if node.id == row.leader), None)
        if address is None:
            raise MinkaError(Code.PARTITION_OFFLINE, f"partition {id_} has no leader")
        return self.control.split_keys(address, id_, parts)

    # Plans

    def plan_reassign(
        self,
        *,
        to: Sequence[str] = (),
        keyspaces: Sequence[str] = (),
        drain: Sequence[str] = (),
        weights: Mapping[str, float] | None = None,
        partitions: Mapping[AnyPartition, Sequence[str]] | None = None,
        reason: str = "",
        rate_limit: int = 0,
        queue: bool = False,
    ) -> Plan:
        """The plan that spreads replicas evenly over the nodes `to` (none: all LIVE ones). Nothing is changed.

        Only these `keyspaces` are planned (none: all). `weights` are the shares of nodes in relation to each other: a
        node of weight 2 gets twice as much as a node of weight 1. Nodes in `drain` have nothing after this plan, but
        later plans and keyspaces may use them again; to take a node out for good, use the method `drain`. `partitions`
        maps partitions to their new replicas, the preferred leader first; with it, only these partitions are planned.
        Give each partition at least min_insync replicas. A partition whose number of replicas differs from the
        keyspace's number keeps its number: later plans only move replicas. The plan's `notes` name partitions with too
        few replicas.
        `rate_limit`, in bytes a second (0: no limit), is the most that each node ships. Partitions that running
        operations move are left alone. With `queue` they are planned from the replicas that they will have after those
        operations.

        Raises UNKNOWN_NODE, UNKNOWN_KEYSPACE, UNKNOWN_PARTITION, NOT_ENOUGH_NODES, NO_SOURCE, OPERATION_RUNNING,
        DISK_LOW.
        """
        assigned = None
        if partitions is not None:
            if not isinstance(partitions, Mapping):
                raise invalid(f"partitions is {clipped(repr(partitions))}, not a mapping from partitions to nodes")
            assigned = dict(zip(partition_ids(self.control, list(partitions)), partitions.values(), strict=True))
            if len(assigned) < len(partitions):
                raise invalid("partitions has one partition twice")
        return plan_of(
            self.control.plan_reassign(
                to,
                keyspaces,
                drain,
                weights=weights,
                partitions=assigned,
                reason=reason,
                rate_limit=rate_limit,
                queue=queue,
            )
        )

    def apply(self, plan: Plan, *, reason: str = "", rate_limit: int | None = None) -> Operation:
        """Start exactly this plan. `reason` and `rate_limit`, if they are given, replace the plan's own.

        Raises STALE_PLAN if the plan's partitions or duties have changed since it was made, DAMAGED_PLAN if the plan
        was edited, OPERATION_RUNNING if another operation moves one of these partitions or duties now, and
        INVALID_ARGUMENT if the plan has no moves: look at `plan.moves` first.
        """
        return operation_of(self.control.apply_plan(message_of(plan), self._requester, reason, rate_limit))

    def elect_leaders(
        self,
        *,
        keyspaces: Sequence[str] = (),
        partitions: Sequence[Partition | str | int] = (),
        reason: str = "",
        queue: bool = False,
    ) -> Election:
        """Let the preferred leader of each partition, its first replica, lead the partition. The partitions are those
        of `keyspaces`, and those in `partitions` (neither given: all). Raises UNKNOWN_KEYSPACE, UNKNOWN_PARTITION,
        OPERATION_RUNNING.
        """
        ids = partition_ids(self.control, partitions)
        answer = self.control.elect_leaders(keyspaces, ids, requested_by=self._requester, reason=reason, queue=queue)
        started = operation_of(answer.operation) if answer.HasField("operation") else None
        return Election(started, read_all(Blocker, answer.skipped))

    def elect_unclean(
        self, partition: Partition | str | int, node: str, *, partition_epoch: int, reason: str = ""
    ) -> None:
        """Let this node lead a partition although the node's copy may lack acknowledged writes, which are then lost.
        `partition_epoch` is the epoch of the `Partition` on which you based the decision.

        Raises UNKNOWN_PARTITION, LEADER_EXISTS, STALE_EPOCH if the partition has changed since then, and
        INELIGIBLE_REPLICA if the node isn't LIVE or has no whole copy.
        """
        id_ = partition_id(self.control, partition)
        self.control.elect_unclean(id_, partition_epoch, node, requested_by=self._requester, reason=reason)

    # Operations

    def operations(self, limit: int = 20) -> list[Operation]:
        """The newest operations, at most `limit` (1 to 1,000)."""
        checked_whole(limit, "limit", range(1, _MOST_OPERATIONS + 1))
        return [operation_of(row) for row in self.control.operations(limit=limit).operations]

    def operation(self, operation: Operation | int) -> Operation:
        """An operation as it is now. Raises UNKNOWN_OPERATION."""
        return operation_of(self.control.operations([_id_of(operation)]).operations[0])

    def migrations(self, operation: Operation | int) -> list[Migration]:
        """The moves of an operation, those under way first. Raises UNKNOWN_OPERATION."""
        found = self.control.operations([_id_of(operation)], with_migrations=True)
        return list(read_all(Migration, found.migrations))

    def blockers(self, operation: Operation | int) -> list[Blocker]:
        """The obstacles that hold an operation up now, as the active controller sees them. Raises UNKNOWN_OPERATION."""
        found = self.control.operations([_id_of(operation)], with_migrations=True, migrations_limit=1)
        return list(read_all(Blocker, found.blockers))

    def wait(self, operation: Operation | int, timeout: float = 3600.0) -> Operation:
        """Wait, at most `timeout` seconds, until an operation has ended, and return it. It may have FAILED: compare its
        `state` with `OperationState.SUCCEEDED`. If no node answers, this asks again. Raises UNKNOWN_OPERATION, and
        DEADLINE_EXCEEDED if no node has said in time that the operation has ended.
        """
        id_, deadline = _id_of(operation), time.monotonic() + checked_timeout(timeout)
        while True:
            patience = max(min(self._timeout, deadline - time.monotonic()), _POLL_S)
            try:
                now = operation_of(self.control.operations([id_], timeout=patience).operations[0])
                seen = f"operation {id_} is {now.state}"
                if now.state.has_ended:
                    return now
            except (Unavailable, DeadlineExceeded) as error:
                seen = f"no node has said if operation {id_} has ended ({error})"
            left = deadline - time.monotonic()
            if left <= 0:
                text = f"{seen} after {timeout:g} s; the operation goes on"
                remedy = f"Wait again, or watch it: minkactl operations watch {id_}"
                raise MinkaError(Code.DEADLINE_EXCEEDED, text, remedy=remedy)
            time.sleep(min(_POLL_S, left))

    def pause(self, operation: Operation | int) -> Operation:
        """Pause an operation: it begins no further move, but the moves under way go on. Raises UNKNOWN_OPERATION,
        OPERATION_ENDED.
        """
        return operation_of(self.control.pause_operation(_id_of(operation)))

    def resume(self, operation: Operation | int) -> Operation:
        """Let a paused operation go on. Raises UNKNOWN_OPERATION, OPERATION_ENDED."""
        return operation_of(self.control.resume_operation(_id_of(operation)))

    def cancel(self, operation: Operation | int, *, reason: str = "") -> Operation:
        """Cancel an operation: moves that can be undone are undone, and the others are completed. Raises
        UNKNOWN_OPERATION, OPERATION_ENDED, and CANCEL_REFUSED if too few replicas would be left.
        """
        return operation_of(self.control.cancel_operation(_id_of(operation), self._requester, reason))

    def limit(self, operation: Operation | int, rate_limit: int) -> Operation:
        """Set the most that each node ships for an operation from now on, in bytes a second (0: no limit). Raises
        UNKNOWN_OPERATION, OPERATION_ENDED.
        """
        return operation_of(self.control.limit_operation(_id_of(operation), rate_limit))


def _counted(number: int | None, name: str) -> int:
    """The number for a request, in which 0 stands for None. Raises INVALID_ARGUMENT if the caller gave 0."""
    if type(number) is int and number == 0:
        raise invalid(f"{name} is 0; give at least 1, or None")
    return 0 if number is None else number


def _id_of(operation: Operation | int) -> int:
    return operation.id if isinstance(operation, Operation) else checked_whole(operation, "operation", range(1 << 64))
