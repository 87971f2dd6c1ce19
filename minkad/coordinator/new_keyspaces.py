"""Creates keyspaces of any size, without keeping other commands waiting."""

from dataclasses import replace

from minka.errors import MinkaError
from minka.v1.admin_pb2 import CreateKeyspaceResponse
from minkad.coordinator.active_controller import ActiveController
from minkad.core.controller.keyspaces import CreateKeyspace, Creation
from minkad.process.turns import turn


async def created(controller: ActiveController, command: CreateKeyspace) -> CreateKeyspaceResponse:
    """Create a keyspace. Most of the work is done before the command has its turn, so other commands don't wait for
    it.
    """
    limit, low_disks = controller.settings.max_replicas_per_node, controller.reports.low_disks()
    command = replace(command, max_replicas_per_node=limit, low_disks=low_disks)
    try:
        creation = Creation(controller.decided, command)
    except MinkaError:
        await controller.up_to_date()
        raise
    for _ in creation.prepare():
        await turn()
    response: CreateKeyspaceResponse = await controller.run(replace(command, creation=creation))
    return response
