"""Importing this module has each replica's state checked after each event. A state that can't be fails the test, with
the replica's story.
"""

from typing import Any

from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import ReplicaState


def told(state: ReplicaState) -> str:
    """The replica and its story, one thing per line."""
    lines = [
        f"  {one.at:.3f} epoch {one.leader_epoch}, {one.applied} <= {one.high_watermark} <= {one.durable} <= {one.end}:"
        f" {one.what}" + f" ({one.times} times)" * (one.times > 1)
        for one in state.story.all()
    ]
    return "\n".join([repr(state), *lines])


def _violated(_: Node[Any], state: ReplicaState, wrong: str) -> None:
    raise AssertionError(f"{wrong}: {told(state)}")


condemn = Node.condemn  # as it is in a daemon
Node.check_every = 1
Node.condemn = _violated  # type: ignore[method-assign, assignment]
