"""The reason why the node can't listen on an address, with the same text for gRPC and HTTP."""

import errno
import socket

from minka.errors import Code, MinkaError
from minkad.config.addresses import split_address


def cannot_listen(key: str, address: str, error: OSError | None) -> MinkaError:
    """The error to raise: ADDRESS_IN_USE with the command that names the holder, else ADDRESS_UNAVAILABLE with the
    cause. The cause may pass, if the network isn't up yet.

    `key` is the configuration key of the address. `error` None: the cause is unknown.
    """
    if error is not None and error.errno == errno.EADDRINUSE:
        _, port = split_address(address)
        who = f"ss -ltnp 'sport = :{port}'"
        return MinkaError(Code.ADDRESS_IN_USE, f"{key}: another process listens on {address}; {who} names it")
    cause = (error.strerror or str(error)) if error is not None else "it could not be bound"
    return MinkaError(Code.ADDRESS_UNAVAILABLE, f"{key}: can't listen on {address}: {cause}")


def bind_error(address: str) -> OSError | None:
    """The kernel's error if a socket is bound to the address; None if the address is free. gRPC doesn't tell it."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, where in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
    except OSError as error:
        return error
    return None
