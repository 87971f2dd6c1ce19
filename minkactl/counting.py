"""Counting the keys of a keyspace exactly, while partitions may move, be split, and be merged."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from minka.admin.control import Control
from minka.errors import Code, MinkaError
from minka.tls import Tls
from minka.v1.admin_pb2 import PartitionCount
from minka.v1.cluster_pb2 import Partition, PartitionTable

ROUNDS: Final = 10
PAUSE_S: Final = 0.2
THREADS: Final = 16


def counted(control: Control, keyspace: str, timeout_s: float) -> list[dict[str, Any]]:
    """A row {name, id, node, keys, bytes} for each partition, counted at its leader.

    Partitions that change meanwhile are counted again: all the counted ranges are of one table, so each key is in
    exactly one of them. Raises MinkaError: UNKNOWN_KEYSPACE; PARTITION_OFFLINE when a partition has no leader;
    NOT_LEADER when partitions keep changing.
    """
    rows: dict[tuple[int, int], dict[str, Any]] = {}  # by id and generation
    for attempt in range(ROUNDS):
        time.sleep(PAUSE_S if attempt else 0)
        table = control.table()
        partitions = _partitions(table, keyspace)
        wanted = _by_leader(keyspace, [one for one in partitions if (one.id, one.generation) not in rows])
        if not wanted:
            return [rows[one.id, one.generation] for one in partitions]
        rows.update(_ask(table, wanted, timeout_s, control.tls))
    raise MinkaError(Code.NOT_LEADER, f"partitions of {keyspace} changed again and again meanwhile")


def _partitions(table: PartitionTable, keyspace: str) -> list[Partition]:
    """The keyspace's partitions, in the order of their ids. Raises UNKNOWN_KEYSPACE."""
    row = next((one for one in table.keyspaces if one.name == keyspace), None)
    if row is None:
        raise MinkaError(Code.UNKNOWN_KEYSPACE, f"no keyspace {keyspace!r}")
    return sorted((one for one in table.partitions if one.keyspace_id == row.id), key=lambda one: one.id)


def _by_leader(keyspace: str, partitions: Iterable[Partition]) -> dict[str, dict[int, str]]:
    """The names of the partitions that each node leads, by node and id. Raises PARTITION_OFFLINE."""
    found: dict[str, dict[int, str]] = {}
    for partition in partitions:
        name = f"{keyspace}/{partition.slot}"
        if not partition.leader:
            raise MinkaError(Code.PARTITION_OFFLINE, f"{name} has no leader, so its keys can't be counted")
        found.setdefault(partition.leader, {})[partition.id] = name
    return found


def _ask(
    table: PartitionTable, wanted: Mapping[str, Mapping[int, str]], timeout_s: float, tls: Tls | None
) -> dict[tuple[int, int], dict[str, Any]]:
    """Each node's counts of the wanted partitions that it leads, by id and generation."""
    addresses = {node.id: node.address for node in table.nodes}

    def ask_one(node: str) -> list[PartitionCount]:
        with Control([addresses[node]], timeout_s, tls=tls) as control:
            return control.count_keys(addresses[node], list(wanted[node]))

    with ThreadPoolExecutor(min(len(wanted), THREADS)) as pool:
        answers = list(pool.map(ask_one, wanted))
    return {
        (one.partition_id, one.generation): {
            "name": wanted[node][one.partition_id],
            "id": one.partition_id,
            "node": node,
            "keys": one.keys,
            "bytes": one.bytes,
        }
        for node, answer in zip(wanted, answers, strict=True)
        for one in answer
        if one.leader and one.partition_id in wanted[node]
    }
