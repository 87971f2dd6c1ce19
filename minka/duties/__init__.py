"""Duties: pieces of your own work that a Minka cluster hands out to your own processes, and keeps balanced.

A process that hosts duties has a `Delegate`, and runs it with `run_shard` or, in asyncio, with `Shard`. Duties are
created and changed with `Client`, or in asyncio with `aio.Client`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minka.duties import aio, changes
    from minka.duties.client import Client
    from minka.duties.delegate import Capacity, Delegate, Duty
    from minka.duties.shard import Shard, run_shard

__all__ = ["Capacity", "Client", "Delegate", "Duty", "Shard", "aio", "changes", "run_shard"]

# Loaded when first used: minkad and minkactl import the package for a part of it alone.
_MODULES = {
    **dict.fromkeys(("Capacity", "Delegate", "Duty"), "delegate"),
    **dict.fromkeys(("Shard", "run_shard"), "shard"),
    "Client": "client",
}


if not TYPE_CHECKING:  # a type checker is to see which names there are

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'minka.duties' has no attribute {name!r}")
        module = importlib.import_module(f"minka.duties.{_MODULES.get(name, name)}")
        return getattr(module, name) if name in _MODULES else module


def __dir__() -> list[str]:
    return __all__
