"""A network in which tests can drop packets. Each node has a network namespace; a bridge connects the namespaces.

The tests and their clients run in the machine's own namespace, which has an address on the bridge.
"""

import secrets
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

from minka.testing.local_cluster import LocalCluster, LocalNode
from tests.cluster.undo import NotPermitted, Undo, run

GRPC_PORT: Final = 7400
HTTP_PORT: Final = 7401
DATA_PORT: Final = 7402
CLIENTS: Final = ""  # the name of the clients' side
_NOWHERE: Final = "02:00:00:00:00:01"  # no interface has this MAC address
_SUBNETS: Final = 250


class Network:
    """A bridge, and the nodes' namespaces; `undo` removes them. Raises NotPermitted if this user can't make them."""

    def __init__(self, undo: Undo) -> None:
        self._undo = undo
        self._token = secrets.token_hex(3)
        self._bridge = f"mk{self._token}"
        self._subnet = _free_subnet()
        self._hosts: dict[str, str] = {CLIENTS: f"{self._subnet}.1"}
        self._lost: set[tuple[str, str]] = set()
        run("ip", "link", "add", self._bridge, "type", "bridge")
        undo.add(["ip", "link", "del", self._bridge])
        run("ip", "addr", "add", f"{self._subnet}.1/24", "dev", self._bridge)
        run("ip", "link", "set", self._bridge, "up")

    def plug(self, name: str) -> str:
        """Make a namespace for this node, and return the address that it has on the bridge."""
        space, end, number = self.namespace(name).name, f"{self._bridge}-{len(self._hosts)}", len(self._hosts) + 10
        run("ip", "netns", "add", space)
        self._undo.add(["ip", "netns", "del", space])
        run("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
        self._undo.add(["ip", "link", "del", end])
        run("ip", "link", "set", end, "master", self._bridge, "up")
        run("ip", "-n", space, "addr", "add", f"{self._subnet}.{number}/24", "dev", "eth0")
        run("ip", "-n", space, "link", "set", "eth0", "up")
        run("ip", "-n", space, "link", "set", "lo", "up")
        self._hosts[name] = f"{self._subnet}.{number}"
        return self._hosts[name]

    def namespace(self, name: str) -> Path:
        """Return the path of the file by which the system names a node's namespace."""
        return Path("/run/netns") / f"minka-{self._token}-{name}"

    def lose(self, source: str, target: str) -> None:
        """From now on, silently drop all packets from `source` to `target`. Those from `target` to `source` arrive."""
        if (source, target) not in self._lost:
            self._lost.add((source, target))
            # Packets go to an Ethernet address that nobody has. As if a cable were cut, neither end gets an error.
            self._neighbour("replace", source, target, "lladdr", _NOWHERE, "nud", "permanent")

    def part(self, one: Iterable[str], other: Sequence[str]) -> None:
        """Drop all packets between the two sides, in both directions."""
        for left, right in product(one, other):
            self.lose(left, right)
            self.lose(right, left)

    def heal(self) -> None:
        """From now on, drop no packets."""
        while self._lost:
            self._neighbour("del", *self._lost.pop())

    def _neighbour(self, verb: str, source: str, target: str, *more: str) -> None:
        where = ["-n", self.namespace(source).name] if source != CLIENTS else []
        device = "eth0" if source != CLIENTS else self._bridge
        run("ip", *where, "neigh", verb, self._hosts[target], *more, "dev", device)


class NetworkedCluster(LocalCluster):
    """A local cluster whose nodes are in namespaces of `network`."""

    def __init__(self, nodes: Sequence[str], network: Network, **config: Any) -> None:
        self.network = network
        super().__init__(nodes, config=config)

    def _make(self, name: str, *, bootstrap: bool) -> LocalNode:
        node = super()._make(name, bootstrap=bootstrap)
        host = self.network.plug(name)
        node.address, node.http_address = f"{host}:{GRPC_PORT}", f"{host}:{HTTP_PORT}"
        node.data_address, node.network = f"{host}:{DATA_PORT}", self.network.namespace(name)
        return node


def _free_subnet() -> str:
    used = run("ip", "-4", "route", "show")
    for _ in range(_SUBNETS):
        subnet = f"10.213.{secrets.randbelow(_SUBNETS) + 1}"
        if f"{subnet}.0/24" not in used:
            return subnet
    raise NotPermitted("no subnet of 10.213.0.0/16 is free")
