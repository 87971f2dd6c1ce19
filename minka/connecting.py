"""`minka.connect`: a client of the cluster that `minkactl` would use."""

from minka.client import Client


def connect(keyspace: str | None = None, *, context: str | None = None, timeout: float = 5.0) -> Client:
    """A client of the cluster that this machine is set up for.

    The cluster is that of `context`, a name given by `minkactl context set`; without `context` that of the
    environment's MINKA_ENDPOINTS (host:port, separated by commas) and MINKA_TLS_CA, _CERT and _KEY, else of the current
    context, else a playground of this user, else 127.0.0.1:7400. `keyspace` is the one on which the client's own put,
    get, … work, and `timeout`, in seconds, holds for every call that doesn't state its own.

        with minka.connect("flights") as flights:
            flights.put("UA1545", b"EWR to IAH")

    Raises MinkaError: UNKNOWN_CONTEXT, INVALID_CONFIG for a mistake in the file of contexts, INVALID_ARGUMENT for a
    mistake in the environment. Nothing is sent before the first call, so only that call fails if the cluster doesn't
    answer.
    """
    return Client(keyspace=keyspace, context=context, timeout=timeout)
