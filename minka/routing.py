"""The client's copy of the partition table: key → slot → partition → node. Pure: it is told what changed."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

import mmh3

from minka.errors import Code, MinkaError
from minka.hashing import HASH_FUNCTIONS
from minka.v1 import cluster_pb2
from minka.v1.cluster_pb2 import HashFunction

_MAX_NAMES_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Route:
    """What a request for one partition needs to know of its row."""

    partition_id: int
    partition_epoch: int
    generation: int
    leader: str  # node id, "" when no live node can lead it
    readable: tuple[str, ...] = ()  # nodes whose replica is in sync


@dataclass(slots=True)
class PairBucket:
    """The pairs of one batch that belong to one slot; keys and values by position."""

    slot: int
    keys: list[bytes]
    values: list[bytes | None]


class KeyspaceRoutes:
    """One hash keyspace: the slot of a key, and the route of a slot."""

    def __init__(self, keyspace: cluster_pb2.Keyspace) -> None:
        if keyspace.hash not in HASH_FUNCTIONS or not keyspace.partition_count:
            raise MinkaError(
                Code.INTERNAL, f"keyspace {keyspace.name!r} is of a kind that this version of the client doesn't know"
            )
        self.name: Final = keyspace.name
        self.count: Final = keyspace.partition_count
        # The same function as hashing.murmur3, without the call in between: a batch hashes every key.
        murmur3 = keyspace.hash == HashFunction.HASH_FUNCTION_MURMUR3
        self._hash: Final[Callable[[bytes], int]] = (
            mmh3.mmh3_32_uintdigest if murmur3 else HASH_FUNCTIONS[keyspace.hash]
        )
        self.routes: Final[list[Route | None]] = [None] * self.count

    def slot(self, key: bytes) -> int:
        """The slot of a key: its hash modulo the number of partitions."""
        return self._hash(key) % self.count

    def key_buckets(self, keys: Iterable[bytes]) -> list[tuple[int, list[bytes]]]:
        """Keys by slot, in their order."""
        digest, count = self._hash, self.count
        buckets: defaultdict[int, list[bytes]] = defaultdict(list)
        for key in keys:
            buckets[digest(key) % count].append(key)
        return list(buckets.items())

    def pair_buckets(self, pairs: Mapping[bytes, bytes | None]) -> list[PairBucket]:
        """Pairs by slot, in their order."""
        digest, count = self._hash, self.count
        keys: defaultdict[int, list[bytes]] = defaultdict(list)
        values: defaultdict[int, list[bytes | None]] = defaultdict(list)
        for key, value in pairs.items():
            slot = digest(key) % count
            keys[slot].append(key)
            values[slot].append(value)
        return [PairBucket(slot, keys[slot], values[slot]) for slot in keys]


class RoutingTable:
    """Every keyspace's routes and every node's address, as far as this client has heard.

    Tables and rows arrive from different nodes in any order; of each partition the row with the highest
    partition_epoch is kept.
    """

    def __init__(self) -> None:
        self.version = 0
        self.cluster_id = ""
        self._keyspaces: dict[str, KeyspaceRoutes] = {}
        self._by_id: dict[int, KeyspaceRoutes] = {}
        self._addresses: dict[str, str] = {}

    def replace(self, table: cluster_pb2.PartitionTable) -> bool:
        """Take a whole table; return whether any route changed.

        Raises CLUSTER_MISMATCH for the table of another cluster than the first one's.
        """
        if self.cluster_id and table.cluster.id and table.cluster.id != self.cluster_id:
            raise MinkaError(
                Code.CLUSTER_MISMATCH,
                f"the endpoints belong to two clusters, {self.cluster_id} and {table.cluster.id}",
            )
        self.cluster_id = self.cluster_id or table.cluster.id  # a node that has just begun knows none yet
        if table.version >= self.version:
            self.version = table.version
            self._addresses = {node.id: node.address for node in table.nodes}
        for keyspace in table.keyspaces:
            if keyspace.id not in self._by_id:
                self._by_id[keyspace.id] = self._keyspaces[keyspace.name] = KeyspaceRoutes(keyspace)
        return self.update(table.partitions)

    def update(self, rows: Iterable[cluster_pb2.Partition]) -> bool:
        """Take single rows, as a refusal carries them; return whether any route changed."""
        changed = False
        for row in rows:
            keyspace = self._by_id.get(row.keyspace_id)
            if keyspace is None:
                continue  # newer than the table: a whole one will bring it
            if row.slot >= keyspace.count:
                raise MinkaError(
                    Code.INTERNAL, f"partition {row.id} has slot {row.slot} of {keyspace.count} in {keyspace.name!r}"
                )
            known = keyspace.routes[row.slot]
            if known is None or row.partition_epoch > known.partition_epoch:
                keyspace.routes[row.slot] = Route(
                    row.id, row.partition_epoch, row.generation, row.leader, tuple(row.isr)
                )
                changed = True
        return changed

    def keyspace(self, name: str) -> KeyspaceRoutes:
        """The routes of a keyspace. Raises UNKNOWN_KEYSPACE, with the names there are."""
        if (routes := self._keyspaces.get(name)) is not None:
            return routes
        names = sorted(self._keyspaces)
        shown = ", ".join(islice(names, _MAX_NAMES_SHOWN)) + (", …" if len(names) > _MAX_NAMES_SHOWN else "")
        raise MinkaError(
            Code.UNKNOWN_KEYSPACE,
            f"there is no keyspace {name!r}; " + (f"there are: {shown}" if names else "the cluster has none yet"),
            keyspace=name,
        )

    def knows(self, name: str) -> bool:
        """Whether there is such a keyspace in this table."""
        return name in self._keyspaces

    def address(self, node_id: str) -> str:
        """The address of a node, "" when it isn't known."""
        return self._addresses.get(node_id, "")

    def addresses(self) -> list[str]:
        """The addresses of all nodes."""
        return [address for address in self._addresses.values() if address]
