"""Minka's client library: `Client`, `AsyncClient` for asyncio, the types that both clients return and raise, and `Tls`.

Every error is a `MinkaError` with a `Code`; the error's class says if the call can safely be repeated:

    try:
        flights.put("UA1545", b"EWR to IAH")
    except minka.Unavailable:  # nothing was done, and the same call may work in a moment
        queue.append("UA1545")
    except minka.OutcomeUnknown:  # or DeadlineExceeded: the put may have been done, so look before you repeat it
        is_there = flights.get("UA1545") == b"EWR to IAH"
    except minka.MinkaError as error:
        if error.code is minka.Code.UNKNOWN_KEYSPACE:
            sys.exit(f"{error}; {error.remedy}")  # str(error) is "CODE: message", without the remedy
        raise

`minka.duties`, `minka.admin`, `minka.rows`, `minka.spark` and `minka.testing` are imported only when a program uses
them.
"""

from typing import TYPE_CHECKING

from minka.lazy_names import lazy_names

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

if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
    _ERRORS = (
        *("Code", "CodeInfo", "Conflict", "ConsistencyNotReached", "DeadlineExceeded", "InternalError"),
        *("InvalidArgument", "LocalFailure", "MinkaError", "NotFound", "NotInstalled", "OutcomeUnknown", "Unavailable"),
    )
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            "minka.async_client": ("AsyncClient", "AsyncKeyspace", "StaleValue"),
            "minka.client": ("Client", "Keyspace"),
            "minka.connecting": ("connect",),
            "minka.engine.batch_error": ("BatchError", "Failure"),
            "minka.engine.operate": ("VersionedValue", "Written"),
            "minka.errors": _ERRORS,
            "minka.tls": ("Tls",),
        },
        packages=("admin", "duties", "rows", "spark", "testing"),
    )
