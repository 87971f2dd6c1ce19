"""What names may look like, and how things are named for people."""

import re
from collections.abc import Mapping
from typing import Final

from minka.v1.cluster_pb2 import Keyspace, Partition

_NODE_ID: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_KEYSPACE: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
PAYLOADS_KEYSPACE: Final = "_duties"  # the cluster's own: nobody can create one whose name begins so


def node_id_problem(text: str) -> str:
    """Why it can't be a node's id or a cluster's name; "" if it can. These stay readable in a log, a path, a metric."""
    if _NODE_ID.fullmatch(text):
        return ""
    return "must be 1 to 63 of a-z, 0-9, dot and dash, beginning with a letter or digit"


def keyspace_name_problem(text: str) -> str:
    """Why it can't be a keyspace's name; "" if it can."""
    return "" if _KEYSPACE.fullmatch(text) else "1 to 63 of a-z, 0-9, _ and -, beginning with a letter"


def partition_name(keyspaces: Mapping[int, Keyspace], partition: Partition) -> str:
    """The keyspace and the slot: flights/7."""
    return f"{keyspaces[partition.keyspace_id].name}/{partition.slot}"
