"""Duties: pieces of your own work that a Minka cluster hands out to your own processes, and keeps balanced.

A process that hosts duties has a `Delegate`, and runs it with `run_shard` or, in asyncio, with `Shard`. `Client`, or
`AsyncClient` in asyncio, creates, changes and finds duties; `minka.duties.changes` makes changes that are done
together. The other names are the types that these functions and classes take, return and raise.
"""

import importlib
from typing import TYPE_CHECKING, Any

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
    from minka.errors import Code, MinkaError

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
    "Code",
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
    "MinkaError",
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

# Names are loaded when first used: minkad and minkactl import only parts of this package.
_MODULES = {
    "AsyncClient": "minka.duties.async_duty_client",
    "Client": "minka.duties.duty_client",
    **dict.fromkeys(("Capacity", "Delegate", "Duty"), "minka.duties.delegate"),
    **dict.fromkeys(("Code", "MinkaError"), "minka.errors"),
    **dict.fromkeys(("DutyChange", "PalletChange"), "minka.duties.changes"),
    **dict.fromkeys(("Shard", "run_shard"), "minka.duties.shard"),
}


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'minka.duties' has no attribute {name!r}")
        if name == "changes":
            return importlib.import_module("minka.duties.changes")
        return getattr(importlib.import_module(_MODULES.get(name, "minka.duties.duty_rows")), name)


def __dir__() -> list[str]:
    return __all__
