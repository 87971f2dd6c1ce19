"""Minka's client library: `Client`, `aio.Client` for asyncio, what both raise, and `Tls`.

Errors are `MinkaError`, with a `Code` each; the classes below it are kinds of them (docs/client.md, "Errors").
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minka import aio
    from minka.aio import BatchError
    from minka.client import Client
    from minka.errors import (
        Code,
        Conflict,
        DeadlineExceeded,
        InternalError,
        InvalidArgument,
        MinkaError,
        NotFound,
        OutcomeUnknown,
        Unavailable,
    )
    from minka.tls import Tls

__version__ = "0.1.0"
__all__ = [
    "BatchError",
    "Client",
    "Code",
    "Conflict",
    "DeadlineExceeded",
    "InternalError",
    "InvalidArgument",
    "MinkaError",
    "NotFound",
    "OutcomeUnknown",
    "Tls",
    "Unavailable",
    "__version__",
    "aio",
]

_MODULES = {"BatchError": "minka.client", "Client": "minka.client", "Tls": "minka.tls"}


if not TYPE_CHECKING:  # a type checker is to see which names there are

    def __getattr__(name: str) -> Any:
        # Loaded when first used: minkad and minkactl import the package for its errors and messages alone.
        if name not in __all__:
            raise AttributeError(f"module 'minka' has no attribute {name!r}")
        if name == "aio":
            return importlib.import_module("minka.aio")
        return getattr(importlib.import_module(_MODULES.get(name, "minka.errors")), name)


def __dir__() -> list[str]:
    return __all__
