"""The controller: commands in, records out or a refusal. Pure; the time is an argument."""

from minkad.core.controller.blockers import blockers_of, what_blocks
from minkad.core.controller.commands import (
    AlterIsr,
    ApplyPlan,
    CancelMigration,
    CancelOperation,
    Command,
    ControlledShutdown,
    CreateCluster,
    CreateKeyspace,
    DrainNode,
    ElectLeaders,
    FailNode,
    HandOver,
    Leave,
    LimitOperation,
    PauseOperation,
    Register,
    RemoveNode,
    ReportReplicas,
    ResumeAll,
    UndrainNode,
)
from minkad.core.controller.decide import decide
from minkad.core.controller.failure_detector import FailureDetector
from minkad.core.controller.isr import check_caller, isr_refusal
from minkad.core.controller.schedule import MigrationCaps, schedule, unfinished
from minkad.core.controller.voters import VoterSettings, change_voters, check_transfer, next_membership_change

__all__ = [
    "AlterIsr",
    "ApplyPlan",
    "CancelMigration",
    "CancelOperation",
    "Command",
    "ControlledShutdown",
    "CreateCluster",
    "CreateKeyspace",
    "DrainNode",
    "ElectLeaders",
    "FailNode",
    "FailureDetector",
    "HandOver",
    "Leave",
    "LimitOperation",
    "MigrationCaps",
    "PauseOperation",
    "Register",
    "RemoveNode",
    "ReportReplicas",
    "ResumeAll",
    "UndrainNode",
    "VoterSettings",
    "blockers_of",
    "change_voters",
    "check_caller",
    "check_transfer",
    "decide",
    "isr_refusal",
    "next_membership_change",
    "schedule",
    "unfinished",
    "what_blocks",
]
