"""Duties: pieces of your own work that a Minka cluster hands out to your own processes, and keeps balanced.

A process that hosts duties has a `Delegate`, and runs it with `run_shard` or, in asyncio, with `Shard`. `Client`, or
`AsyncClient` in asyncio, creates, changes and finds duties; `minka.duties.changes` makes changes that a client sends
together. The other names are the types that these functions and classes take, return and raise.
"""

from typing import TYPE_CHECKING

from minka.lazy_names import lazy_names

if TYPE_CHECKING:
    from minka.duties import changes
    from minka.duties.async_duty_client import AsyncClient
    from minka.duties.changes import DutyChange, PalletChange
    from minka.duties.delegate import Capacity, Delegate, Duty
    from minka.duties.duty_client import Client
    from minka.duties.duty_rows import (
        Assignment,
        AssignmentState,
        Balancer,
        BalancerComparison,
        BalancerKind,
        Canary,
        Consistency,
        DutyExplanation,
        DutyMove,
        DutyRow,
        DutyStatus,
        FillBy,
        HandOverTimes,
        OnFailure,
        Pallet,
        PalletSummary,
        PreSort,
        Quarantine,
        ShardLoad,
        Shards,
        ShardState,
        ShardStatus,
        ShardVerdict,
        Suspicion,
        UnplacedDuty,
    )
    from minka.duties.shard import Shard, run_shard

__all__ = [
    "Assignment",
    "AssignmentState",
    "AsyncClient",
    "Balancer",
    "BalancerComparison",
    "BalancerKind",
    "Canary",
    "Capacity",
    "Client",
    "Consistency",
    "Delegate",
    "Duty",
    "DutyChange",
    "DutyExplanation",
    "DutyMove",
    "DutyRow",
    "DutyStatus",
    "FillBy",
    "HandOverTimes",
    "OnFailure",
    "Pallet",
    "PalletChange",
    "PalletSummary",
    "PreSort",
    "Quarantine",
    "Shard",
    "ShardLoad",
    "ShardState",
    "ShardStatus",
    "ShardVerdict",
    "Shards",
    "Suspicion",
    "UnplacedDuty",
    "changes",
    "run_shard",
]

if not TYPE_CHECKING:  # type checkers use the imports above instead
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            "minka.duties.async_duty_client": ("AsyncClient",),
            "minka.duties.changes": ("DutyChange", "PalletChange"),
            "minka.duties.delegate": ("Capacity", "Delegate", "Duty"),
            "minka.duties.duty_client": ("Client",),
            "minka.duties.duty_rows": (
                "Assignment",
                "AssignmentState",
                "Balancer",
                "BalancerComparison",
                "BalancerKind",
                "Canary",
                "Consistency",
                "DutyExplanation",
                "DutyMove",
                "DutyRow",
                "DutyStatus",
                "FillBy",
                "HandOverTimes",
                "OnFailure",
                "Pallet",
                "PalletSummary",
                "PreSort",
                "Quarantine",
                "ShardLoad",
                "Shards",
                "ShardState",
                "ShardStatus",
                "ShardVerdict",
                "Suspicion",
                "UnplacedDuty",
            ),
            "minka.duties.shard": ("Shard", "run_shard"),
        },
        packages=("changes",),
    )
