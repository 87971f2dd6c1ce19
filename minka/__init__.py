"""Minka's client library: `Client`, `aio.Client` for asyncio, `BatchError`, which both raise, and `Tls`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minka import aio
    from minka.aio import BatchError
    from minka.client import Client
    from minka.tls import Tls

__version__ = "0.1.0"
__all__ = ["BatchError", "Client", "Tls", "__version__", "aio"]


def __getattr__(name: str) -> Any:
    # Loaded when first used: minkad and minkactl import the package for its errors and messages alone.
    if name == "aio":
        return importlib.import_module("minka.aio")
    if name in ("BatchError", "Client"):
        return getattr(importlib.import_module("minka.client"), name)
    if name == "Tls":
        return importlib.import_module("minka.tls").Tls
    raise AttributeError(f"module 'minka' has no attribute {name!r}")
