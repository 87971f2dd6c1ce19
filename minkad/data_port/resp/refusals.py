"""Refusals of nodes, in the words of Redis."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from minka.cluster.hashing import crc16
from minka.cluster.key_ranges import MAX_KEY_BYTES
from minka.cluster.name_rules import keyspace_problem
from minka.cluster.routing_table import Route
from minka.errors import Code, MinkaError
from minkad.data_port.resp.keyspaces import Keyspaces, View
from minkad.data_port.resp.replies import RespError

DOWN_S: Final = 10.0
"""A partition that nobody has served for this long is down; before, clients are told to try again."""

_CODES: Final = {Code.NOT_ENOUGH_REPLICAS: "NOREPLICAS", Code.OVERLOADED: "BUSY", Code.NO_CLEARANCE: "CLUSTERDOWN",
                 Code.PARTITION_OFFLINE: "CLUSTERDOWN"}  # fmt: skip


class Refusals:
    """Makes the errors, and knows since when partitions are not served."""

    def __init__(self, node_id: str, keyspaces: Keyspaces, clock: Callable[[], float], rng: Random) -> None:
        self.rng = rng
        self._node_id = node_id
        self._keyspaces = keyspaces
        self._clock = clock
        self._down_since: dict[int, float] = {}  # by partition: the first refusal after it was served last

    def served(self, partition_id: int) -> None:
        """The partition is served."""
        if self._down_since:
            self._down_since.pop(partition_id, None)

    def moved(self, leader: str, key: bytes) -> RespError:
        """The error for a key in a slot of another node."""
        address = self._keyspaces.data_address(leader)
        if not address:
            return RespError(f"CLUSTERDOWN the address of {leader} is not known yet")
        return RespError(f"MOVED {crc16(key)} {address}")

    def is_elsewhere(self, route: Route | None) -> bool:
        """True if another node leads the partition."""
        return route is not None and route.leader not in ("", self._node_id)

    def for_cluster(self, route: Route | None, error: MinkaError, key: bytes) -> RespError:
        """The error for a client of Redis Cluster if this node doesn't lead the key's partition, or can't serve it."""
        if route is not None and route.leader not in ("", self._node_id):
            return self.moved(route.leader, key)
        number = route.partition_id if route is not None else 0
        since = self._down_since.setdefault(number, self._clock())
        if self._clock() - since < DOWN_S:
            return RespError(f"TRYAGAIN {error.message}")
        return RespError(f"CLUSTERDOWN {error.message}")

    @staticmethod
    def plain(error: MinkaError) -> RespError:
        """The error for any other refusal: its code and text."""
        if (code := _CODES.get(error.code)) is not None:
            return RespError(f"{code} {error.message}")
        return RespError(f"ERR {error.code.name}: {error.message}")


def unknown(words: Sequence[bytes]) -> RespError:
    """The error for a command that doesn't exist, in the words of Redis."""
    name = words[0][:128].decode("utf-8", "replace")
    shown = " ".join(f"'{word[:128].decode('utf-8', 'replace')}'" for word in words[1:20])[:128]
    return RespError(f"ERR unknown command '{name}', with args beginning with: {shown}")


def no_keyspace(name: bytes, code: str, knows_table: bool) -> RespError:
    """The error for a keyspace that isn't in the table: it may be missing because the table is incomplete."""
    if not knows_table:
        return RespError("LOADING the node has just started, or hears no controller: it may not know all keyspaces")
    shown = name[:64].decode("utf-8", "replace")
    if problem := keyspace_problem(name.decode("utf-8", "replace")):
        return RespError(f"{code} there is no keyspace '{shown}': a name {problem}")
    return RespError(
        f"{code} there is no keyspace '{shown}': create it (minkactl keyspace create {shown} --partitions 64 "
        "--hash crc16), or name another one as the user (AUTH KEYSPACE '')"
    )


def too_large() -> RespError:
    """The error for a value over the limit."""
    return RespError("ERR string exceeds maximum allowed size (16777216 bytes)")


def check_keys(keys: Sequence[bytes], view: View) -> None:
    """Raises RespError for an invalid key, and for keys in several slots of a Redis Cluster."""
    if b"" in keys:
        raise RespError("ERR a key is empty: a key of Minka has 1 to 65536 bytes")
    if max(map(len, keys)) > MAX_KEY_BYTES:
        raise RespError("ERR a key is too long: a key of Minka has 1 to 65536 bytes")
    if len(keys) > 1 and view.is_cluster and len(set(map(crc16, keys))) > 1:
        raise RespError("CROSSSLOT Keys in request don't hash to the same slot")
