"""The rules of names, and the names of things for people."""

import re
from collections.abc import Mapping
from typing import Final

from minka.v1.cluster_pb2 import Keyspace, Partition

_NODE_ID: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
PAYLOADS_KEYSPACE: Final = "_duties"  # the cluster's own: keyspaces that people create don't begin with "_"


def node_id_problem(text: str) -> str:
    """Says why `text` can't be a node's id or a cluster's name, for logs, paths and metrics; "" if it can."""
    if _NODE_ID.fullmatch(text):
        return ""
    return "must be 1 to 63 of a-z, 0-9, dot and dash, beginning with a letter or digit"


def partition_name(keyspaces: Mapping[int, Keyspace], partition: Partition) -> str:
    """The keyspace and the slot: flights/7."""
    return f"{keyspaces[partition.keyspace_id].name}/{partition.slot}"
