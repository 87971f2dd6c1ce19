"""Each command stands once: beside the function that decides it, with a row in the table."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import minkad.core
from minka.v1 import admin_pb2 as admin
from minka.v1 import coordinator_pb2 as nodes
from minka.v1 import duty_api_pb2 as duties
from minka.v1 import load_api_pb2 as loads
from minka.v1 import shards_pb2 as shards
from minkad.core.controller.decide import COMMANDS
from minkad.core.controller.decision import OwnCommand
from minkad.core.controller.drains import DrainNode
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.membership import Register
from minkad.core.controller.merges import Merge
from minkad.core.controller.operation_kind import Begins
from minkad.core.controller.preferred import ElectLeaders
from minkad.core.controller.reassigns import ApplyPlan
from minkad.core.controller.splits import Split
from minkad.core.duties.control.shard_lives import RegisterShard

SERVICES = (
    (admin, "Admin"),
    (nodes, "Coordinator"),
    (loads, "Loads"),
    (loads, "LoadControl"),
    (duties, "DutyControl"),
    (shards, "ShardCoordinator"),
)
BECOMES: dict[type[Message], type[OwnCommand]] = {
    admin.CreateKeyspaceRequest: CreateKeyspace,
    admin.ApplyPlanRequest: ApplyPlan,
    admin.ElectLeadersRequest: ElectLeaders,
    admin.SplitRequest: Split,
    admin.MergeRequest: Merge,
    admin.DrainNodeRequest: DrainNode,
    nodes.RegisterRequest: Register,
    shards.RegisterShardRequest: RegisterShard,
}
CHANGES_NO_TABLE = {
    admin.GetStatusRequest,
    admin.ListPartitionsRequest,
    admin.PlanReassignRequest,
    admin.GetOperationsRequest,
    admin.GetDrainStatusRequest,
    admin.GetSplitBlockersRequest,
    admin.DescribeNodeRequest,
    admin.TransferLeadershipRequest,  # these two change only the Raft group
    admin.ChangeVotersRequest,
    nodes.HeartbeatRequest,
    loads.GetLoadsRequest,
    duties.GetPalletsRequest,
    duties.GetDutiesRequest,
    duties.GetShardsRequest,
    duties.ExplainDutyRequest,
    duties.PlanRebalanceRequest,
    duties.ComparePalletRequest,
    shards.ShardHeartbeatsRequest,
}


def requests() -> set[type[Message]]:
    """The requests to the active controller."""
    services: list[ServiceDescriptor] = [module.DESCRIPTOR.services_by_name[name] for module, name in SERVICES]
    return {GetMessageClass(method.input_type) for service in services for method in service.methods}


def own_commands() -> Iterator[type[OwnCommand]]:
    """The classes that a module of the core defines."""
    for found in pkgutil.walk_packages(minkad.core.__path__, "minkad.core."):
        for thing in vars(importlib.import_module(found.name)).values():
            if isinstance(thing, type) and issubclass(thing, OwnCommand) and thing is not OwnCommand:
                yield thing


def test_each_request_is_a_command_or_becomes_one_or_changes_no_table() -> None:
    commands = {type_ for type_ in COMMANDS if issubclass(type_, Message)}
    assert commands | BECOMES.keys() | CHANGES_NO_TABLE == requests()
    assert len(commands) + len(BECOMES) + len(CHANGES_NO_TABLE) == len(requests())


def test_each_own_command_has_a_row() -> None:
    found = {Begins if issubclass(type_, Begins) else type_ for type_ in own_commands()}
    assert found == {type_ for type_ in COMMANDS if not issubclass(type_, Message)}


def test_each_own_command_stands_in_the_module_of_the_function_that_decides_it() -> None:
    for type_, rule in COMMANDS.items():
        if type_ is not Begins and not issubclass(type_, Message):
            assert inspect.getmodule(type_) is inspect.getmodule(rule.decide), type_
