"""Helpers that crash a node, start it again, and let it lead again."""

import shutil
from pathlib import Path

from tests.integration.replication.harness import Cluster
from tests.integration.replication.node import TestNode
from tests.unit.storage.crash import crashed_copy


async def crash(c: Cluster, node: TestNode) -> None:
    """Restart the node with the files that a crash would have left now."""
    left = crashed_copy(node.path, node.path.with_name(f"{node.id}-crashed"))
    await restart_from(node, left)
    assert c.nodes[node.id] is node


async def restart_from(node: TestNode, left: Path) -> None:
    """Start the node again with this folder."""
    await node.stop()
    replace_folder(node.path, left)
    await node.start()


def replace_folder(path: Path, left: Path) -> None:
    """Replace `path` with the folder `left`."""
    shutil.rmtree(path)
    left.rename(path)


async def lead_again(c: Cluster, node: TestNode, *partition_ids: int) -> None:
    """Let the node lead again, as the controller does when a node is back."""
    for id_ in partition_ids:
        c.elect(id_, node.id)
    response = await node.tell(*(c.rows[id_] for id_ in partition_ids))
    assert sorted(response.hosted_ids) == sorted(partition_ids), response
