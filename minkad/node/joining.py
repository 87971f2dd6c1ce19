"""The first start of a node, with an empty data directory: it founds the cluster or joins it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import grpc

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import GetTableRequest
from minka.v1.admin_pb2_grpc import MetadataStub
from minka.v1.cluster_pb2 import Node, PartitionTable
from minka.v1.coordinator_pb2 import RegisterRequest
from minkad.config import Config
from minkad.coordinator.member import as_new_process, register_patiently
from minkad.rpc.channels import Channels
from minkad.rpc.peers import Peers
from minkad.storage import identity
from minkad.storage.identity import Identity

log: Final = logging.getLogger(__name__)

ASK_TIMEOUT: Final = 1.0
REGISTER_TIMEOUT: Final = 2.0  # an address may belong to a silent node
CHECK_TIMEOUT: Final = 0.5
RETRY: Final = 0.5  # seconds between tries to join


async def new_identity(
    config: Config, node: Node, channels: Channels, holder_patience: float, now: Callable[[], float]
) -> Identity:
    """The identity of `node`, which has its data id. Waits for a cluster to join, if necessary. Raises MinkaError."""
    founders = [(peer.id, peer.address) for peer in config.cluster.bootstrap]
    ids = [founder for founder, _ in founders]
    if node.id in ids:
        cluster = identity.cluster_id(config.cluster.name, founders)
        others = [address for founder, address in founders if founder != node.id]
        if not await _was_here_before(channels, [*others, *config.cluster.join], cluster, node.id):
            return Identity(cluster, node.id, node.data_id, ids.index(node.id) + 1, config.cluster.name)
        log.info("the cluster knows this node with another data directory, or has removed it: asking to join")
    return await _join(config, channels, node, holder_patience, now)


async def _was_here_before(channels: Channels, addresses: Sequence[str], cluster: str, node_id: str) -> bool:
    """True if an existing cluster has had this founder, so that its raft id is used up.

    A founder that lost its disk may have voted, and must not vote again under the same raft id. Only nodes that answer
    count; if none does, the cluster counts as new. Raises CLUSTER_MISMATCH.
    """
    tables = await asyncio.gather(*(_table(channels, address) for address in addresses))
    there = [table for table in tables if table is not None and table.cluster.id]
    if not there:
        return False
    newest = max(there, key=lambda table: table.version)
    if newest.cluster.id != cluster:
        raise MinkaError(Code.CLUSTER_MISMATCH, f"the nodes of cluster.bootstrap form the cluster {newest.cluster.id}")
    row = next((row for row in newest.nodes if row.id == node_id), None)
    return row is None or bool(row.data_id)


async def refuse_older_copy(channels: Channels, addresses: Sequence[str], own: Identity, starts: int) -> None:
    """Raises DATA_DIRECTORY_ROLLED_BACK if this data directory is an older copy, which may contradict its earlier
    votes: this is start 5, say, and another node's table knows start 5. Nodes that don't answer soon don't count.
    """
    tables = await asyncio.gather(*(_table(channels, address, CHECK_TIMEOUT) for address in addresses))
    rows = [row for table in tables if table is not None for row in table.nodes]
    known = max((row.starts for row in rows if row.data_id == own.data_id), default=0)
    if known >= starts:
        text = f"this is start {starts} of the data directory, and the cluster has seen {known}"
        raise MinkaError(Code.DATA_DIRECTORY_ROLLED_BACK, text)


async def _table(channels: Channels, address: str, timeout: float = ASK_TIMEOUT) -> PartitionTable | None:
    """A node's copy of the table; None if it doesn't answer."""
    stub = MetadataStub(channels.to(address))
    try:
        answer = await stub.GetTable(GetTableRequest(), timeout=timeout, metadata=channels.identity)
    except grpc.aio.AioRpcError:
        return None
    return answer.table


async def _join(
    config: Config, channels: Channels, node: Node, holder_patience: float, now: Callable[[], float]
) -> Identity:
    """Ask for a raft id at the addresses of `cluster.join`, until one leads to a controller."""
    cluster = config.cluster
    addresses = list(cluster.join) or [peer.address for peer in cluster.bootstrap if peer.id != node.id]
    peers = Peers(channels, lambda _: "")
    told = False
    while True:
        try:
            request = RegisterRequest(node=node)
            _, answer = await register_patiently(peers.call, addresses, request, holder_patience, REGISTER_TIMEOUT, now)
            return Identity(answer.cluster_id, node.id, node.data_id, answer.raft_id, config.cluster.name)
        except MinkaError as error:
            if error.code is Code.NOT_REGISTERED:  # an answer was lost, and since then the node has counted as dead
                node = as_new_process(node)
            elif not error.code.info.retriable:
                raise
            if not told:
                log.info("no cluster to join yet, trying on", extra={"reason": str(error)})
                told = True
        await asyncio.sleep(RETRY)
