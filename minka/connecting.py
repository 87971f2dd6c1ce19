"""`minka.connect`: a client of the cluster that `minkactl` would use."""

from minka.client import Client


def connect(keyspace: str | None = None, *, context: str | None = None, timeout: float = 5.0) -> Client:
    """A client of the cluster that this machine is set up for.

    `context` is a name given by `minkactl context set`. Without it, the first of these that is set counts: the
    environment's MINKA_ENDPOINTS (host:port, separated by commas) with MINKA_TLS_CA, _CERT and _KEY; the current
    context; a running playground of this user; 127.0.0.1:7400. `keyspace` names the keyspace that the client's own
    methods (`put`, `get`, …) work on. `timeout`, in seconds, holds for every call without a `timeout` of its own.

        with minka.connect("flights") as flights:
            flights.put("UA1545", b"EWR to IAH")

    Raises MinkaError: UNKNOWN_CONTEXT, INVALID_CONFIG for a mistake in the file of contexts, INVALID_ARGUMENT for a
    mistake in the environment. Nothing is sent before the first call, so only that call fails if the cluster doesn't
    answer.
    """
    return Client(keyspace=keyspace, context=context, timeout=timeout)
