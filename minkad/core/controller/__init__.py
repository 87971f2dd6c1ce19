"""The controller: commands in, records out or a refusal. Pure; the time is an argument."""

from minkad.core.controller.commands import (
    ApplyPlan,
    CancelMigration,
    Command,
    CreateCluster,
    CreateKeyspace,
    FailNode,
    HandOver,
    Leave,
    Register,
    RemoveNode,
    ReportReplicas,
)
from minkad.core.controller.decide import decide
from minkad.core.controller.failure_detector import FailureDetector
from minkad.core.controller.schedule import MigrationCaps, schedule
from minkad.core.controller.voters import VoterSettings, change_voters, check_transfer, next_membership_change

__all__ = [
    "ApplyPlan",
    "CancelMigration",
    "Command",
    "CreateCluster",
    "CreateKeyspace",
    "FailNode",
    "FailureDetector",
    "HandOver",
    "Leave",
    "MigrationCaps",
    "Register",
    "RemoveNode",
    "ReportReplicas",
    "VoterSettings",
    "change_voters",
    "check_transfer",
    "decide",
    "next_membership_change",
    "schedule",
]
