"""The requests that nodes send to the active controller: the name and the types of each, in one table."""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from minka.v1.admin_pb2 import Plan
from minka.v1.coordinator_pb2 import (
    AlterIsrRequest,
    AlterIsrResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    FinishMergeRequest,
    FinishMergeResponse,
    FinishSplitRequest,
    FinishSplitResponse,
    HandOverRequest,
    HandOverResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveRequest,
    LeaveResponse,
    ProposeSplitRequest,
    ProposeSplitResponse,
    RegisterRequest,
    RegisterResponse,
)
from minka.v1.duty_api_pb2 import (
    ChangeDutiesRequest,
    ChangeDutiesResponse,
    ChangePalletsRequest,
    ChangePalletsResponse,
    ComparePalletRequest,
    ComparePalletResponse,
    ExplainDutyRequest,
    ExplainDutyResponse,
    GetDutiesRequest,
    GetDutiesResponse,
    GetPalletsRequest,
    GetPalletsResponse,
    GetShardsRequest,
    GetShardsResponse,
    PlanRebalanceRequest,
)
from minka.v1.load_api_pb2 import FinishLoadPartsRequest, FinishLoadPartsResponse
from minka.v1.shards_pb2 import (
    LeaveShardRequest,
    LeaveShardResponse,
    RegisterShardRequest,
    RegisterShardResponse,
    ReportShardsRequest,
    ReportShardsResponse,
    ShardHeartbeatsRequest,
    ShardHeartbeatsResponse,
)

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """A kind of request. If it isn't `is_repeatable`, a call that breaks off leaves its outcome unknown."""

    service: str
    name: str
    request: type[Request]
    response: type[Response]
    is_repeatable: bool = True

    @property
    def path(self) -> str:
        """The method's name in gRPC."""
        return f"/minka.v1.{self.service}/{self.name}"


REGISTER: Final = Method("Coordinator", "Register", RegisterRequest, RegisterResponse)
HEARTBEAT: Final = Method("Coordinator", "Heartbeat", HeartbeatRequest, HeartbeatResponse)
"""In gRPC a stream: each request on it gets its response."""

HAND_OVER: Final = Method("Coordinator", "HandOver", HandOverRequest, HandOverResponse, is_repeatable=False)
ALTER_ISR: Final = Method("Coordinator", "AlterIsr", AlterIsrRequest, AlterIsrResponse)
PROPOSE_SPLIT: Final = Method("Coordinator", "ProposeSplit", ProposeSplitRequest, ProposeSplitResponse)
FINISH_SPLIT: Final = Method("Coordinator", "FinishSplit", FinishSplitRequest, FinishSplitResponse)
FINISH_MERGE: Final = Method("Coordinator", "FinishMerge", FinishMergeRequest, FinishMergeResponse, is_repeatable=False)
CONTROLLED_SHUTDOWN: Final = Method(
    "Coordinator", "ControlledShutdown", ControlledShutdownRequest, ControlledShutdownResponse
)
LEAVE: Final = Method("Coordinator", "Leave", LeaveRequest, LeaveResponse)

FINISH_LOAD_PARTS: Final = Method("LoadControl", "FinishLoadParts", FinishLoadPartsRequest, FinishLoadPartsResponse)

REGISTER_SHARD: Final = Method("ShardCoordinator", "RegisterShard", RegisterShardRequest, RegisterShardResponse)
SHARD_HEARTBEATS: Final = Method("ShardCoordinator", "ShardHeartbeats", ShardHeartbeatsRequest, ShardHeartbeatsResponse)
REPORT_SHARDS: Final = Method("ShardCoordinator", "ReportShards", ReportShardsRequest, ReportShardsResponse)
LEAVE_SHARD: Final = Method("ShardCoordinator", "LeaveShard", LeaveShardRequest, LeaveShardResponse)

CHANGE_PALLETS: Final = Method(
    "DutyControl", "ChangePallets", ChangePalletsRequest, ChangePalletsResponse, is_repeatable=False
)
GET_PALLETS: Final = Method("DutyControl", "GetPallets", GetPalletsRequest, GetPalletsResponse)
CHANGE_DUTIES: Final = Method(
    "DutyControl", "ChangeDuties", ChangeDutiesRequest, ChangeDutiesResponse, is_repeatable=False
)
GET_DUTIES: Final = Method("DutyControl", "GetDuties", GetDutiesRequest, GetDutiesResponse)
GET_SHARDS: Final = Method("DutyControl", "GetShards", GetShardsRequest, GetShardsResponse)
EXPLAIN_DUTY: Final = Method("DutyControl", "ExplainDuty", ExplainDutyRequest, ExplainDutyResponse)
PLAN_REBALANCE: Final = Method("DutyControl", "PlanRebalance", PlanRebalanceRequest, Plan)
COMPARE_PALLET: Final = Method("DutyControl", "ComparePallet", ComparePalletRequest, ComparePalletResponse)
