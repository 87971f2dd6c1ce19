"""Duties: named pieces of your own work, which the cluster hands out to your processes and keeps balanced.

A process that hosts duties has a `Delegate`, and runs it with `run_shard` or, in asyncio, with `Shard`.
"""

from minka.duties.delegate import Capacity, Delegate, Duty
from minka.duties.shard import Shard, run_shard

__all__ = ["Capacity", "Delegate", "Duty", "Shard", "run_shard"]
