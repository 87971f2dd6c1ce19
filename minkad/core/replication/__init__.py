"""The part that one node has in the partitions that it hosts, without I/O, in the shape of `minkad.core.raft`.

Methods are events: a row, an entry, what another node says, a sync that is done, an answer of the controller, the time.
What follows is in the node's `Outbox`: send, sync, apply, ask. `minkad.replication` carries it out.
"""
