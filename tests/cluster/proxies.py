"""Proxies in front of nodes' data ports: other nodes and clients connect to the proxy as if it were the data port."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from minka.testing.local_cluster import LocalCluster
from minka.testing.loopback_ports import free_addresses
from minkad.config.addresses import split_address

_CONNECT_S: Final = 2.0
_BYTES: Final = 65536


class Proxy:
    """Passes all bytes on. After `hang`, the proxy still accepts connections and reads a little, but passes nothing on.
    After `refuse`, it refuses connections.
    """

    def __init__(self, target: str) -> None:
        self.address = free_addresses(1)[0]
        self._target = split_address(target)
        self._passes = threading.Event()
        self._passes.set()
        self._sockets: set[socket.socket] = set()
        self._listener = self._listen()

    def _listen(self) -> socket.socket:
        listener = socket.create_server(split_address(self.address), backlog=128)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._passes.wait()
        try:
            node = socket.create_connection(self._target, _CONNECT_S)
        except OSError:
            client.close()
            return
        for one in (client, node):
            one.settimeout(None)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.add(one)
        threading.Thread(target=self._pump, args=(node, client), daemon=True).start()
        self._pump(client, node)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_BYTES):
                self._passes.wait()
                target.sendall(data)
        for one in (source, target):
            self._end(one)

    def _end(self, one: socket.socket) -> None:
        self._sockets.discard(one)
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()

    def hang(self) -> None:
        """Pass nothing on."""
        self._passes.clear()

    def refuse(self) -> None:
        """End all connections, and accept no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in list(self._sockets):
            self._end(one)

    def mend(self) -> None:
        """Pass everything on again."""
        self._passes.set()
        if self._listener.fileno() < 0:
            self._listener = self._listen()

    def close(self) -> None:
        """End all threads."""
        self.refuse()
        self._passes.set()


@contextmanager
def proxied(cluster: LocalCluster) -> Iterator[dict[str, Proxy]]:
    """Put a proxy in front of each node's data port, before the cluster starts. Yields the proxies, by node."""
    proxies = {node.name: Proxy(node.data_address) for node in cluster.nodes.values()}
    for node in cluster.nodes.values():
        node.config = {"advertise": {"data": proxies[node.name].address}}
    try:
        yield proxies
    finally:
        for proxy in proxies.values():
            proxy.close()
