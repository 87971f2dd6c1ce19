"""The replicas of one node, without I/O, in the shape of `minkad.core.raft`.

The methods of `Node` are events: a row, an entry, a message of another node, a finished sync, an answer of the
controller, the time. They put instructions into the node's `Outbox`: send, sync, apply, ask. `minkad.replication` (the
*shell* in these docstrings) carries the instructions out.
"""
