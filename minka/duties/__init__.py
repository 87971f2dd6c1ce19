"""Duties: pieces of your own work that a Minka cluster hands out to your own processes."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minka.duties import aio, changes
    from minka.duties.client import Client

__all__ = ["Client", "aio", "changes"]

# Loaded when first used: minkad and minkactl import the package for a part of it alone.
_MODULES = {"Client": "client"}


if not TYPE_CHECKING:  # a type checker is to see which names there are

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'minka.duties' has no attribute {name!r}")
        module = importlib.import_module(f"minka.duties.{_MODULES.get(name, name)}")
        return getattr(module, name) if name in _MODULES else module


def __dir__() -> list[str]:
    return __all__
