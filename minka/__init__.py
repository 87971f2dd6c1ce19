"""Minka's client library: `Client`, `AsyncClient` for asyncio, the types that these return and raise, and `Tls`.

Every error is a `MinkaError` with a `Code`; the error's class says if the call can safely be repeated:

    try:
        flights.put("UA1545", b"EWR to IAH")
    except minka.Unavailable:  # nothing was done, and the same call may work in a moment
        queue.append("UA1545")
    except minka.OutcomeUnknown:  # also DeadlineExceeded: it may have been done, so look before you repeat it
        is_there = flights.get("UA1545") == b"EWR to IAH"
    except minka.MinkaError as error:
        if error.code is minka.Code.UNKNOWN_KEYSPACE:
            sys.exit(f"{error}; {error.code.info.remedy}")  # str(error) is "CODE: message", without the remedy
        raise

`minka.duties`, `minka.admin`, `minka.rows`, `minka.spark` and `minka.testing` are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minka import admin as admin
    from minka import duties as duties
    from minka import rows as rows
    from minka import spark as spark
    from minka import testing as testing
    from minka.async_client import AsyncClient, AsyncKeyspace, StaleValue
    from minka.client import Client, Keyspace
    from minka.connecting import connect
    from minka.engine.batch_error import BatchError, Failure
    from minka.engine.operate import VersionedValue, Written
    from minka.errors import (
        Code,
        CodeInfo,
        Conflict,
        ConsistencyNotReached,
        DeadlineExceeded,
        InternalError,
        InvalidArgument,
        LocalFailure,
        MinkaError,
        NotFound,
        NotInstalled,
        OutcomeUnknown,
        Unavailable,
    )
    from minka.tls import Tls

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "AsyncKeyspace",
    "BatchError",
    "Client",
    "Code",
    "CodeInfo",
    "Conflict",
    "ConsistencyNotReached",
    "DeadlineExceeded",
    "Failure",
    "InternalError",
    "InvalidArgument",
    "Keyspace",
    "LocalFailure",
    "MinkaError",
    "NotFound",
    "NotInstalled",
    "OutcomeUnknown",
    "StaleValue",
    "Tls",
    "Unavailable",
    "VersionedValue",
    "Written",
    "__version__",
    "connect",
]

_PACKAGES = ("admin", "duties", "rows", "spark", "testing")
_MODULES = {
    **dict.fromkeys(("AsyncClient", "AsyncKeyspace", "StaleValue"), "minka.async_client"),
    **dict.fromkeys(("Client", "Keyspace"), "minka.client"),
    **dict.fromkeys(("BatchError", "Failure"), "minka.engine.batch_error"),
    **dict.fromkeys(("VersionedValue", "Written"), "minka.engine.operate"),
    "Tls": "minka.tls",
    "connect": "minka.connecting",
}


if not TYPE_CHECKING:  # a type checker is to see which names there are

    def __getattr__(name: str) -> Any:
        # These are loaded when first used: minkad and minkactl import the package for its errors and messages alone.
        if name in _PACKAGES:
            try:
                return importlib.import_module(f"minka.{name}")
            except ImportError as error:  # so that `hasattr` and `inspect.getmembers` go on
                raise AttributeError(f"minka.{name}: {error}") from error
        if name not in __all__:
            raise AttributeError(f"module 'minka' has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES.get(name, "minka.errors")), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
