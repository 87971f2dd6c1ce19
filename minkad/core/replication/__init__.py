"""The part that one node has in the partitions that it hosts, without I/O, in the shape of `minkad.core.raft`.

Its methods are events: a row, an entry, a message of another node, a finished sync, an answer of the controller, the
time. What is to be done then is put into the node's `Outbox`: send, sync, apply, ask. `minkad.replication` carries it
out.
"""
