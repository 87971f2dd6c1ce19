"""The connections of synchronous clients."""

from threading import Lock
from typing import Final

import grpc

from minka.engine.grpc_calls import channel_credentials, channel_options
from minka.errors import Code, MinkaError
from minka.tls import Tls

_CONNECT_SECONDS: Final = 2.0


class Channels:
    """One channel for each address, kept open until `close`. Any thread may use this."""

    def __init__(self, tls: Tls | None) -> None:
        """`tls` is for a cluster with TLS; a mistake in its files raises INVALID_CONFIG."""
        self._credentials: Final = channel_credentials(tls)
        self._open: dict[str, grpc.Channel] = {}
        self._lock = Lock()
        self._is_closed = False

    def to(self, address: str, connect_timeout: float = _CONNECT_SECONDS) -> grpc.Channel:
        """The channel to an address; it connects when first used. `connect_timeout`, in seconds, is for a channel that
        doesn't exist yet. Raises INVALID_ARGUMENT after `close`.
        """
        with self._lock:
            self.check_open()
            channel = self._open.get(address)
            if channel is None:
                options = channel_options(min(connect_timeout, _CONNECT_SECONDS))
                if self._credentials is None:
                    channel = grpc.insecure_channel(address, options=options)
                else:
                    channel = grpc.secure_channel(address, self._credentials, options=options)
                self._open[address] = channel
            return channel

    def check_open(self) -> None:
        """Raises INVALID_ARGUMENT after `close`."""
        if self._is_closed:
            raise MinkaError(Code.INVALID_ARGUMENT, "the client is closed")

    def close(self) -> None:
        """Close all channels."""
        with self._lock:
            self._is_closed = True
            while self._open:
                self._open.popitem()[1].close()
