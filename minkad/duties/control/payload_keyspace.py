"""The keyspace of duties' payloads, which the active controller creates before the first pallet."""

from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import HashFunction
from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.new_keyspaces import created
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.state.display_names import PAYLOADS_KEYSPACE

_PARTITIONS: Final = 16  # many nodes share the writes, since keys begin with random bytes


async def ensure_payload_keyspace(coordinator: Coordinator) -> None:
    """Create the keyspace unless it exists: with the default number of replicas, and by ranges, for scans.

    Raises NOT_CONTROLLER, NO_CONTROLLER, NOT_ENOUGH_NODES, and the other refusals of a new keyspace.
    """
    if coordinator.state.keyspace_named(PAYLOADS_KEYSPACE) is not None:
        return
    split_points = [bytes([part * 256 // _PARTITIONS]) for part in range(1, _PARTITIONS)]
    command = CreateKeyspace(PAYLOADS_KEYSPACE, 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, split_points=split_points)
    try:
        await created(coordinator.controller(), command)
    except MinkaError as error:
        if error.code is not Code.KEYSPACE_EXISTS:  # two pallets were created at once
            raise
