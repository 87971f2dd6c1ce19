"""The controller turns a command into records or a refusal. Its functions are pure; the time is an argument."""

from minkad.core.controller.balancer import View
from minkad.core.controller.balancers import BALANCERS
from minkad.core.controller.blockers import blockers_of, split_blockers, what_blocks
from minkad.core.controller.commands import (
    AbortAbandoned,
    AbortLoad,
    AlterIsr,
    BeginLoad,
    BeginQueued,
    CancelMigration,
    CancelOperation,
    Command,
    CommitLoad,
    ControlledShutdown,
    ControllerFailover,
    CreateCluster,
    CreateKeyspace,
    ElectUnclean,
    FailNodes,
    FinishLoadParts,
    FinishMerge,
    FinishSplit,
    HandOver,
    Leave,
    LimitOperation,
    PauseOperation,
    ProposeSplit,
    Register,
    RemoveNode,
    ReportReplicas,
    TouchLoad,
    UndrainNode,
)
from minkad.core.controller.data_ports import DataPortJudge, Unanswered, watched_by
from minkad.core.controller.decide import decide, facts
from minkad.core.controller.drains import DrainNode
from minkad.core.controller.failure_detector import FailureDetector
from minkad.core.controller.isr import check_caller, isr_refusal
from minkad.core.controller.load_balancer import SpreadLoad
from minkad.core.controller.membership import process_of
from minkad.core.controller.merges import Merge
from minkad.core.controller.mover import MigrationCaps
from minkad.core.controller.preferred import ElectLeaders
from minkad.core.controller.reassigns import ApplyPlan
from minkad.core.controller.schedule import Scheduler, unfinished
from minkad.core.controller.seats import Seats
from minkad.core.controller.splits import Split
from minkad.core.controller.voters import VoterSettings, change_voters, check_transfer, next_membership_change
from minkad.core.duties.control.distribution import Distributor, describe_unplaced
from minkad.core.duties.control.duty_commands import (
    ChangeDuties,
    ChangePallets,
    FailShards,
    LeaveShard,
    NoteFlap,
    RegisterShard,
    ReportShards,
)
from minkad.core.duties.control.duty_rebalance import BalancePallet, compare_pallet, held_back, plan_rebalance
from minkad.core.duties.control.rooms import rooms
from minkad.core.duties.control.shard_lives import is_process, is_registered
from minkad.core.duties.control.trust import score

__all__ = [
    "BALANCERS",
    "AbortAbandoned",
    "AbortLoad",
    "AlterIsr",
    "ApplyPlan",
    "BalancePallet",
    "BeginLoad",
    "BeginQueued",
    "CancelMigration",
    "CancelOperation",
    "ChangeDuties",
    "ChangePallets",
    "Command",
    "CommitLoad",
    "ControlledShutdown",
    "ControllerFailover",
    "CreateCluster",
    "CreateKeyspace",
    "DataPortJudge",
    "Distributor",
    "DrainNode",
    "ElectLeaders",
    "ElectUnclean",
    "FailNodes",
    "FailShards",
    "FailureDetector",
    "FinishLoadParts",
    "FinishMerge",
    "FinishSplit",
    "HandOver",
    "Leave",
    "LeaveShard",
    "LimitOperation",
    "Merge",
    "MigrationCaps",
    "NoteFlap",
    "PauseOperation",
    "ProposeSplit",
    "Register",
    "RegisterShard",
    "RemoveNode",
    "ReportReplicas",
    "ReportShards",
    "Scheduler",
    "Seats",
    "Split",
    "SpreadLoad",
    "TouchLoad",
    "Unanswered",
    "UndrainNode",
    "View",
    "VoterSettings",
    "blockers_of",
    "change_voters",
    "check_caller",
    "check_transfer",
    "compare_pallet",
    "decide",
    "describe_unplaced",
    "facts",
    "held_back",
    "is_process",
    "is_registered",
    "isr_refusal",
    "next_membership_change",
    "plan_rebalance",
    "process_of",
    "rooms",
    "score",
    "split_blockers",
    "unfinished",
    "watched_by",
    "what_blocks",
]
