"""Runs the trace files that etcd/raft publishes, and other files in their format, against Minka's Raft core.

`data/` has some of etcd's traces (Apache-2.0, see its LICENSE). They are data, not code.
"""
