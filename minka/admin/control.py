"""The control calls that `Admin` and minkactl make. They are synchronous, and this module imports little, so that
minkactl starts quickly.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

import grpc

from minka.admin.partition_pages import Partitions
from minka.cluster.name_rules import keyspace_problem
from minka.cluster.table_changes import with_changes
from minka.engine.arguments import checked_text, checked_timeout, invalid
from minka.engine.attempts import Attempts
from minka.engine.grpc_calls import checked_endpoints, clipped, error_from_call, unreachable
from minka.engine.requests import made
from minka.engine.sync_channels import Channels
from minka.errors import Code, MinkaError
from minka.tls import Tls
from minka.v1 import admin_pb2, cluster_pb2, duty_api_pb2, load_api_pb2, loads_pb2
from minka.v1.admin_pb2_grpc import AdminStub, InventoryStub, MetadataStub
from minka.v1.duty_api_pb2_grpc import DutiesStub
from minka.v1.load_api_pb2_grpc import LoadsStub

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_View = TypeVar("_View")
if TYPE_CHECKING:  # gRPC's classes are generic only for the type checker
    _Rpc = Callable[[grpc.Channel], grpc.UnaryUnaryMultiCallable[_Request, _Response]]

_LEAST_S: Final = 0.02


class Control:
    """The control calls of a cluster. A call asks the endpoints one after the other.

    `endpoints` are addresses host:port of some of the nodes. Every method finishes within `timeout` seconds, redirects
    and repetitions included, and raises only `MinkaError`: a node's refusal; UNREACHABLE, NO_CONTROLLER or
    DEADLINE_EXCEEDED, which name each endpoint that was tried, and its error; or OUTCOME_UNKNOWN if the answer to a
    change was lost. A change is repeated only if a refusal, or a connection that was never made, shows that nothing was
    done. `tls` is for a cluster with TLS; its files are read at once, and a mistake in them raises INVALID_CONFIG.
    """

    def __init__(self, endpoints: Sequence[str], timeout: float = 5.0, *, tls: Tls | None = None) -> None:
        self.endpoints: Final = checked_endpoints(endpoints)
        self.timeout: Final = checked_timeout(timeout)
        self.tls: Final = tls
        self._channels: Final = Channels(tls)
        self._controller = ""  # the last known address of the active controller
        self._known_table = cluster_pb2.PartitionTable()  # the active controller's table, from the last `status`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._channels.close()

    def status(self) -> admin_pb2.GetStatusResponse:
        """The active controller's view of the cluster if the controller can be reached, else the view of the first node
        that answers. In the answer, `from_controller` says if the controller gave it, and `served_by` names the node.
        """
        known = self._known_table
        request = admin_pb2.GetStatusRequest(known_version=known.version, known_cluster=known.cluster.id)

        def ask(address: str, timeout: float) -> admin_pb2.GetStatusResponse:
            response = self._status(address, request, timeout)
            if response.HasField("changes"):
                response.table.CopyFrom(with_changes(known, response.changes))
            return response

        answer = self._view(ask, lambda response: response)
        if answer.from_controller:
            self._known_table = answer.table
        return answer

    def summary(self, timeout: float | None = None) -> admin_pb2.GetStatusResponse:
        """The view of `status` with sums instead of partitions; its size doesn't grow with the number of partitions."""
        request = admin_pb2.GetStatusRequest(summary=True)

        def ask(address: str, seconds: float) -> admin_pb2.GetStatusResponse:
            return self._status(address, request, seconds)

        return self._view(ask, lambda response: response, timeout)

    def summary_at(self, address: str, silent: Sequence[str] = ()) -> admin_pb2.GetStatusResponse:
        """The summary as the node at this address sees it; no other node is asked. `silent` names nodes for the
        summary's field `only_on_silent`, which counts the partitions whose replicas in sync are all on these nodes.
        """
        request = admin_pb2.GetStatusRequest(summary=True, silent=silent)
        return self._status(address, request, self.timeout)

    def partitions(self, wanted: admin_pb2.PartitionFilter | None = None, limit: int = 0) -> Partitions:
        """The `wanted` partitions (None: all), as seen by the node that would answer `status`. At most `limit`
        partitions are listed (0: all); the others are only counted. The list arrives while the caller reads it.
        """
        request, opened = made(admin_pb2.ListPartitionsRequest, filter=wanted, limit=limit), list[Partitions]()

        def ask(address: str, timeout: float) -> Partitions:
            call = AdminStub(self._channels.to(address, timeout)).ListPartitions(request)
            opened.append(Partitions(address, call, self._channels, timeout, self.timeout))
            return opened[-1].begun()

        found = None
        try:
            found = self._view(ask, lambda listed: listed.status)
            return found
        finally:
            for one in opened:
                if one is not found:
                    one.close()

    def _status(self, address: str, request: admin_pb2.GetStatusRequest, timeout: float) -> admin_pb2.GetStatusResponse:
        return self._ask(address, lambda channel: AdminStub(channel).GetStatus, request, timeout, repeatable=True)

    def _view(
        self,
        ask: Callable[[str, float], _View],
        status_of: Callable[[_View], admin_pb2.GetStatusResponse],
        timeout: float | None = None,
    ) -> _View:
        """The active controller's answer; if it can't be reached, the first answer of another node. `ask` takes an
        address and a timeout in seconds.
        """
        attempts = self._attempts(timeout, repeatable=True)
        first = None
        while (place := attempts.next(time.monotonic())) is not None:
            address, seconds = place
            try:
                answer = ask(address, seconds)
            except MinkaError as error:
                if not attempts.goes_on(address, error):
                    raise
                continue
            status = status_of(answer)
            if status.from_controller:
                self._controller = address
                return answer
            first = first or answer
            attempts.goes_on(address, _not_controller(address, status))
        if first is None:
            raise unreachable(attempts.tried)
        self._controller = ""
        return first

    def copies_at(
        self, address: str, partition_ids: Sequence[int], timeout: float, *, stories: bool = False
    ) -> admin_pb2.DescribeNodeResponse:
        """Ask the node at this address about itself and its copies of these partitions, perhaps with their stories.
        Raises UNREACHABLE, DEADLINE_EXCEEDED.
        """
        request = made(admin_pb2.DescribeNodeRequest, partitions=partition_ids, stories=stories)
        return self._ask(address, lambda channel: AdminStub(channel).DescribeNode, request, timeout, repeatable=True)

    def describe_node(self, address: str, timeout: float, done: Callable[["Described"], None]) -> "Described":
        """Ask the node at this address about itself, for at most `timeout` seconds, without waiting for the answer.

        One of gRPC's threads calls `done` with the result: an answer or a failure.
        """
        call = AdminStub(self._channels.to(address, timeout)).DescribeNode
        described = Described(address, call.future(admin_pb2.DescribeNodeRequest(), timeout=timeout))
        described.call.add_done_callback(lambda _: done(described))
        return described

    def table(self) -> cluster_pb2.PartitionTable:
        """The partition table, from the first node that answers."""
        return self._call(
            lambda channel: MetadataStub(channel).GetTable, admin_pb2.GetTableRequest(), repeatable=True
        ).table

    def create_keyspace(
        self,
        name: str,
        partition_count: int,
        hash_function: cluster_pb2.HashFunction.ValueType,
        replicas: int = 0,
        *,
        min_insync: int = 0,
        durability: cluster_pb2.Durability.ValueType = cluster_pb2.Durability.DURABILITY_UNSPECIFIED,
        unclean_election: bool = False,
        split_points: Sequence[bytes] | None = None,
        max_bytes: int = 0,
        max_ops: int = 0,
    ) -> cluster_pb2.Keyspace:
        """Create a keyspace. Without `split_points` it is by hash, and its number of partitions never changes. With
        `split_points`, which ascend, it is by ranges, and `partition_count` and `hash_function` are ignored. A range of
        more than `max_bytes`, or with more than `max_ops` keys read and written a second (0: no limit), is split
        automatically.

        `replicas` 0 means 3 in a cluster of three nodes or more, else 1. `min_insync` 0 means a majority of the
        replicas if there are three or more, else 1. An unspecified `durability` is SYNC. The controller decides these
        values when it creates the keyspace. Raises INVALID_ARGUMENT, KEYSPACE_EXISTS, and the controller's refusals.
        """
        ranges = None
        if split_points is not None:
            ranges = made(admin_pb2.Ranges, split_points=split_points, max_bytes=max_bytes, max_ops=max_ops)
        request = made(
            admin_pb2.CreateKeyspaceRequest,
            called={"partition_count": "partitions"},
            name=checked_text(name, "the name of a keyspace", keyspace_problem),
            partition_count=partition_count,
            hash=hash_function,
            replicas=replicas,
            min_insync=min_insync,
            durability=durability,
            unclean_election=unclean_election,
            ranges=ranges,
        )
        return self._call(lambda channel: AdminStub(channel).CreateKeyspace, request, repeatable=False).keyspace

    def plan_reassign(
        self,
        to: Sequence[str] = (),
        keyspaces: Sequence[str] = (),
        drain: Sequence[str] = (),
        *,
        weights: Mapping[str, float] | None = None,
        partitions: Mapping[int, Sequence[str]] | None = None,
        reason: str = "",
        rate_limit: int = 0,
        queue: bool = False,
    ) -> admin_pb2.Plan:
        """The plan that spreads replicas evenly over the nodes `to` (none given: all LIVE ones). Nothing is changed.

        Only these `keyspaces` are planned (none given: all). The nodes in `drain` get nothing and lose what they have.
        `weights` are the nodes' shares in relation to each other (a node that isn't named has the weight of its
        configuration). `partitions` maps ids of partitions to their new replicas, the preferred leader first; with it,
        only these partitions are planned. The operation that carries out the plan gets `reason` and `rate_limit` (bytes
        a second that each node may ship; 0: no limit). Partitions that unfinished operations move are left alone. With
        `queue` they are planned from the replicas that they will have after those operations, and the plan's operation
        waits for those operations.
        """
        if partitions is not None and not isinstance(partitions, Mapping):
            raise invalid(f"partitions is {clipped(repr(partitions))}, not a mapping from ids to nodes")
        called = {"partition_id": "a key of partitions", "replicas": "a value of partitions"}
        assigned = [
            made(admin_pb2.AssignedReplicas, called=called, partition_id=partition_id, replicas=replicas)
            for partition_id, replicas in (partitions or {}).items()
        ]
        request = made(
            admin_pb2.PlanReassignRequest,
            to=to,
            keyspaces=keyspaces,
            drain=drain,
            weights={} if weights is None else weights,
            partitions=assigned,
            reason=reason,
            rate_limit=rate_limit,
            queue=queue,
        )
        return self._call(lambda channel: AdminStub(channel).PlanReassign, request, repeatable=True)

    def apply_plan(
        self, plan: admin_pb2.Plan, requested_by: str, reason: str = "", rate_limit: int | None = None
    ) -> cluster_pb2.Operation:
        """Start exactly this plan, as an operation. Raises STALE_PLAN if things that the plan moves have changed since
        it was made, DAMAGED_PLAN if the plan was edited, and OPERATION_RUNNING if another operation moves one of these
        things now.

        `reason` and `rate_limit` (the most bytes a second that each node ships; 0: no limit) replace the plan's own if
        they are given.
        """
        request = made(
            admin_pb2.ApplyPlanRequest, plan=plan, requested_by=requested_by, reason=reason, rate_limit=rate_limit
        )
        return self._call(lambda channel: AdminStub(channel).ApplyPlan, request, repeatable=False).operation

    def elect_leaders(
        self,
        keyspaces: Sequence[str] = (),
        partitions: Sequence[int] = (),
        *,
        requested_by: str,
        reason: str = "",
        queue: bool = False,
    ) -> admin_pb2.ElectLeadersResponse:
        """Let the preferred leader of each partition, its first replica, lead the partition. The partitions are those
        of these keyspaces, and those with these ids (neither given: all). If leaders have to change, this starts
        an operation.
        """
        request = made(
            admin_pb2.ElectLeadersRequest,
            keyspaces=keyspaces,
            partitions=partitions,
            requested_by=requested_by,
            reason=reason,
            queue=queue,
        )
        return self._call(lambda channel: AdminStub(channel).ElectLeaders, request, repeatable=False)

    def elect_unclean(
        self, partition_id: int, partition_epoch: int, node: str, *, requested_by: str, reason: str = ""
    ) -> None:
        """Let this node lead the partition, if the partition still has this epoch. The node's copy may lack
        acknowledged writes.

        Raises LEADER_EXISTS, STALE_EPOCH, and INELIGIBLE_REPLICA if the node isn't LIVE or has no whole copy.
        """
        unclean = made(
            admin_pb2.UncleanElection,
            called={"partition_id": "partition"},
            partition_id=partition_id,
            partition_epoch=partition_epoch,
            node=node,
        )
        request = made(admin_pb2.ElectLeadersRequest, requested_by=requested_by, reason=reason, unclean=unclean)
        self._call(lambda channel: AdminStub(channel).ElectLeaders, request, repeatable=False)

    def drain(
        self,
        node: str,
        decommission: bool = False,
        *,
        requested_by: str,
        reason: str = "",
        rate_limit: int = 0,
        queue: bool = False,
    ) -> cluster_pb2.Operation:
        """Make a node safe to stop, as an operation; with `decommission` all its replicas are moved away, too.
        `rate_limit` is the most bytes a second that each node ships for the drain (0: no limit). If other operations
        touch the same partitions or duties, this raises OPERATION_RUNNING; with `queue` the drain waits for those
        operations instead.
        """
        request = made(
            admin_pb2.DrainNodeRequest,
            node=node,
            decommission=decommission,
            requested_by=requested_by,
            reason=reason,
            rate_limit=rate_limit,
            queue=queue,
        )
        return self._call(lambda channel: AdminStub(channel).DrainNode, request, repeatable=False).operation

    def undrain(self, node: str, requested_by: str = "") -> None:
        """Take back a drain, so that the node is used again; if the drain has not ended, it is cancelled."""
        request = made(admin_pb2.UndrainNodeRequest, node=node, requested_by=requested_by)
        self._call(lambda channel: AdminStub(channel).UndrainNode, request, repeatable=True)

    def drain_status(self, node: str) -> admin_pb2.GetDrainStatusResponse:
        """The effects of stopping the node now, as the active controller sees them."""
        request = made(admin_pb2.GetDrainStatusRequest, node=node)
        return self._call(lambda channel: AdminStub(channel).GetDrainStatus, request, repeatable=True)

    def pallets(self, timeout: float) -> duty_api_pb2.GetPalletsResponse:
        """All pallets, each with the sums of its duties. The call takes at most `timeout` seconds."""
        request = duty_api_pb2.GetPalletsRequest()
        return self._call(lambda channel: DutiesStub(channel).GetPallets, request, repeatable=True, timeout=timeout)

    def shards(self, timeout: float) -> duty_api_pb2.GetShardsResponse:
        """All shards, with their duties. The call takes at most `timeout` seconds."""
        request = duty_api_pb2.GetShardsRequest()
        return self._call(lambda channel: DutiesStub(channel).GetShards, request, repeatable=True, timeout=timeout)

    def split_blockers(self, partition_id: int) -> admin_pb2.GetSplitBlockersResponse:
        """The obstacles to a split of the partition now, as the active controller sees them. Raises
        UNKNOWN_PARTITION.
        """
        request = made(admin_pb2.GetSplitBlockersRequest, partition_id=partition_id)
        return self._call(lambda channel: AdminStub(channel).GetSplitBlockers, request, repeatable=True)

    def pause_operation(self, operation_id: int) -> cluster_pb2.Operation:
        """Pause the operation: it begins no further migration, but the migrations under way go on. Raises
        UNKNOWN_OPERATION, OPERATION_ENDED.
        """
        request = made(admin_pb2.PauseOperationRequest, id=operation_id)
        return self._call(lambda channel: AdminStub(channel).PauseOperation, request, repeatable=True).operation

    def resume_operation(self, operation_id: int) -> cluster_pb2.Operation:
        """Let a paused operation go on. Raises UNKNOWN_OPERATION, OPERATION_ENDED."""
        request = made(admin_pb2.ResumeOperationRequest, id=operation_id)
        return self._call(lambda channel: AdminStub(channel).ResumeOperation, request, repeatable=True).operation

    def cancel_operation(self, operation_id: int, requested_by: str, reason: str = "") -> cluster_pb2.Operation:
        """Cancel an operation: migrations that can be undone are undone, and the others are completed. Raises
        UNKNOWN_OPERATION, OPERATION_ENDED, and CANCEL_REFUSED if too few replicas would be left.
        """
        request = made(
            admin_pb2.CancelOperationRequest,
            id=operation_id,
            requested_by=requested_by,
            reason=reason,
        )
        return self._call(lambda channel: AdminStub(channel).CancelOperation, request, repeatable=False).operation

    def limit_operation(self, operation_id: int, rate_limit: int) -> cluster_pb2.Operation:
        """Set the most bytes a second that each node ships for the operation from now on; 0: no limit. Raises
        UNKNOWN_OPERATION, OPERATION_ENDED.
        """
        request = made(admin_pb2.LimitOperationRequest, id=operation_id, rate_limit=rate_limit)
        return self._call(lambda channel: AdminStub(channel).LimitOperation, request, repeatable=True).operation

    def split(
        self, keyspace: str, keys: Sequence[bytes], requested_by: str, reason: str = "", *, queue: bool = False
    ) -> cluster_pb2.Operation | None:
        """Let new partitions begin at these keys, as an operation. Returns None if partitions begin at all of these
        keys already. Raises UNKNOWN_KEYSPACE, NOT_BY_RANGES, OPERATION_RUNNING.
        """
        request = made(
            admin_pb2.SplitRequest, keyspace=keyspace, keys=keys, requested_by=requested_by, reason=reason, queue=queue
        )
        response = self._call(lambda channel: AdminStub(channel).Split, request, repeatable=False)
        return response.operation if response.HasField("operation") else None

    def merge(
        self, keyspace: str, keys: Sequence[bytes], requested_by: str, reason: str = "", *, queue: bool = False
    ) -> cluster_pb2.Operation:
        """Merge each partition that begins at one of these keys into the partition before it, as an operation. Raises
        UNKNOWN_KEYSPACE, NOT_BY_RANGES, NO_BOUND, MERGE_REFUSED, OPERATION_RUNNING.
        """
        request = made(
            admin_pb2.MergeRequest, keyspace=keyspace, keys=keys, requested_by=requested_by, reason=reason, queue=queue
        )
        return self._call(lambda channel: AdminStub(channel).Merge, request, repeatable=False).operation

    def begin_load(
        self, load_id: str, keyspace: str, *, requested_by: str = "", job: str = "", rate_limit: int = 0
    ) -> loads_pb2.Load:
        """Begin a load, or return the load that already has this id. `job` is a note that is kept with the load, up to
        8 KiB; `rate_limit` is the most bytes a second for uploads to a node (0: no limit). Raises UNKNOWN_KEYSPACE,
        TOO_MANY_LOADS, and LOAD_EXISTS if a load of another keyspace has the id.
        """
        request = made(
            load_api_pb2.BeginLoadRequest,
            load_id=load_id,
            keyspace=keyspace,
            requested_by=requested_by,
            job=job,
            rate_limit=rate_limit,
        )
        return self._call(lambda channel: LoadsStub(channel).BeginLoad, request, repeatable=True).load

    def touch_load(self, load_id: str) -> loads_pb2.Load:
        """Tell the cluster that somebody still works on the load, so that it isn't aborted. Raises UNKNOWN_LOAD."""
        request = made(load_api_pb2.TouchLoadRequest, load_id=load_id)
        return self._call(lambda channel: LoadsStub(channel).TouchLoad, request, repeatable=True).load

    def commit_load(self, load_id: str, files: Sequence[loads_pb2.LoadFile]) -> loads_pb2.Load:
        """Commit the load: the nodes take in all of these files, or none. A load that is committed already stays as it
        is. Raises STALE_LOAD, RANGES_CHANGING, LOAD_ENDED, UNKNOWN_LOAD.
        """
        request = made(load_api_pb2.CommitLoadRequest, load_id=load_id, files=files)
        return self._call(lambda channel: LoadsStub(channel).CommitLoad, request, repeatable=True).load

    def abort_load(self, load_id: str, requested_by: str, reason: str = "") -> loads_pb2.Load:
        """Abort the load, so that nodes take in nothing of it. Raises UNKNOWN_LOAD, and LOAD_ENDED once the load is
        committed.
        """
        request = made(load_api_pb2.AbortLoadRequest, load_id=load_id, requested_by=requested_by, reason=reason)
        return self._call(lambda channel: LoadsStub(channel).AbortLoad, request, repeatable=True).load

    def loads(self, load_ids: Sequence[str] = (), *, with_parts: bool = False) -> load_api_pb2.GetLoadsResponse:
        """Loads by id, or all that the cluster remembers. For committed loads that nodes have not taken in yet, the
        answer also has the obstacles and, with `with_parts`, the loads' parts. Raises UNKNOWN_LOAD.
        """
        request = made(load_api_pb2.GetLoadsRequest, load_ids=load_ids, with_parts=with_parts)
        return self._call(lambda channel: LoadsStub(channel).GetLoads, request, repeatable=True)

    def transfer_leadership(self, node: str) -> None:
        """Ask the voter `node` to lead the coordinator. The status shows if it leads; a transfer can fail without an
        error.
        """
        request = made(admin_pb2.TransferLeadershipRequest, node=node)
        self._call(lambda channel: AdminStub(channel).TransferLeadership, request, repeatable=True)

    def change_voters(self, promote: Sequence[str], demote: Sequence[str]) -> None:
        """Ask for learners to become voters and for voters to become learners, in one change. The status shows if the
        change is done.

        If the request is lost, repeat it: a request for a change that is done already has no effect.
        """
        request = made(admin_pb2.ChangeVotersRequest, promote=promote, demote=demote)
        self._call(lambda channel: AdminStub(channel).ChangeVoters, request, repeatable=True)

    def remove_node(self, node: str) -> None:
        """Remove from the cluster a node that is not LIVE and holds nothing. Raises NODE_IN_USE if the node is LIVE or
        holds something.
        """
        request = made(admin_pb2.RemoveNodeRequest, node=node)
        self._call(lambda channel: AdminStub(channel).RemoveNode, request, repeatable=False)

    def operations(
        self,
        ids: Sequence[int] = (),
        *,
        limit: int = 0,
        with_migrations: bool = False,
        migrations_limit: int = 0,
        timeout: float | None = None,
    ) -> admin_pb2.GetOperationsResponse:
        """Operations by id, or the newest `limit` operations (0: 20). With `with_migrations` each operation comes with
        at most `migrations_limit` of its migrations (0: all), those under way first. Only the active controller knows
        progress and blockers.
        """
        seconds = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        if with_migrations and not self._controller:
            self.summary(seconds)  # this finds the active controller, and sets `_controller`
        request = made(
            admin_pb2.GetOperationsRequest,
            ids=ids,
            limit=limit,
            with_migrations=with_migrations,
            migrations_limit=migrations_limit,
        )
        left = max(deadline - time.monotonic(), _LEAST_S)
        response = self._call(lambda channel: AdminStub(channel).GetOperations, request, repeatable=True, timeout=left)
        copying = any(m.state == cluster_pb2.MIGRATION_STATE_COPYING for m in response.migrations)
        if copying and not response.progress:
            self._controller = ""  # perhaps another node is the active controller by now: look for it next time
        return response

    def count_keys(self, address: str, partition_ids: Sequence[int] = ()) -> list[admin_pb2.PartitionCount]:
        """Let the node at this address count the keys of these partitions (none given: of all its partitions) by
        reading them from its disks.
        """
        request = made(admin_pb2.CountKeysRequest, partition_ids=partition_ids)
        address = checked_endpoints([address])[0]
        return list(
            self._ask(
                address, lambda channel: InventoryStub(channel).CountKeys, request, self.timeout, repeatable=True
            ).partitions
        )

    def split_keys(self, address: str, partition_id: int, parts: int) -> list[bytes]:
        """Keys that divide a partition into `parts` parts of about the same size. The node at this address must lead
        the partition.
        """
        request = made(admin_pb2.SplitKeysRequest, partition_id=partition_id, parts=parts)
        address = checked_endpoints([address])[0]
        return list(
            self._ask(
                address, lambda channel: InventoryStub(channel).SplitKeys, request, self.timeout, repeatable=True
            ).keys
        )

    def _call(
        self, rpc: "_Rpc[_Request, _Response]", request: _Request, *, repeatable: bool, timeout: float | None = None
    ) -> _Response:
        """Ask one node after the other until one takes the request. If all refuse, ask them again until the time is
        over; if none can be reached, give up at once.
        """
        attempts = self._attempts(timeout, repeatable=repeatable)
        while True:
            while (place := attempts.next(time.monotonic())) is not None:
                address, seconds = place
                try:
                    return self._ask(address, rpc, request, seconds, repeatable=repeatable)
                except MinkaError as error:
                    if not attempts.goes_on(address, error):
                        raise
                    self._controller = attempts.first
            time.sleep(attempts.pause(time.monotonic()))

    def _attempts(self, timeout: float | None, *, repeatable: bool) -> Attempts:
        seconds = self.timeout if timeout is None else timeout
        return Attempts(self.endpoints, self._controller, time.monotonic(), seconds, is_repeatable=repeatable)

    def _ask(
        self, address: str, rpc: "_Rpc[_Request, _Response]", request: _Request, timeout: float, *, repeatable: bool
    ) -> _Response:
        try:
            return rpc(self._channels.to(address, timeout))(request, timeout=timeout)
        except grpc.RpcError as error:
            raise error_from_call(error, address, repeatable=repeatable) from error


@dataclass(frozen=True, slots=True, eq=False)
class Described:
    """A node's answer to `Control.describe_node`, which may still be on its way."""

    address: str
    call: "grpc.Future[admin_pb2.DescribeNodeResponse]"

    def answer(self) -> admin_pb2.DescribeNodeResponse:
        """The node's answer. Raises MinkaError with the reason if there is none; DEADLINE_EXCEEDED also while no answer
        has come yet.
        """
        if not self.call.done():
            raise MinkaError(Code.DEADLINE_EXCEEDED, f"{self.address} has not answered yet", address=self.address)
        try:
            return self.call.result()
        except grpc.RpcError as error:
            raise error_from_call(error, self.address, repeatable=True) from error


def _not_controller(address: str, status: admin_pb2.GetStatusResponse) -> MinkaError:
    """The error for a node that isn't the active controller. It names the controller's address if the node knows it."""
    leader = next((one.address for one in status.table.nodes if one.id == status.coordinator.controller), "")
    text = f"{address} is not the active controller"
    return MinkaError(Code.NOT_CONTROLLER, text, leader_address=leader)
