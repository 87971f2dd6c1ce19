"""Finds out if a node serves a partition now: sends the read that a client would send."""

from asyncio import events
from typing import TYPE_CHECKING, Final

from minka.v1.cluster_pb2 import Partition
from minka.wire import kv_frames

if TYPE_CHECKING:
    from tests.simulation.process import Process

_FIRST_KEY: Final = b"\x00"


def is_served(process: "Process", row: Partition) -> bool:
    """True if the process answers a read of the partition's first key at once."""
    body = kv_frames.encode([row.start_key or _FIRST_KEY])
    group = kv_frames.Group(kv_frames.Op.READ, row.id, row.generation, body)
    share = process.memory.share()
    running = events._get_running_loop()
    events._set_running_loop(process.loop._self)
    try:
        ticket = process.manager.requests.begin([group], 0, share, lambda _: None)
    finally:
        events._set_running_loop(running)
        share.close()
    return not ticket.missing and ticket.answers[0].error is None
