"""Runs the trace files that etcd/raft publishes, and others of their format, against Minka's Raft core.

`data/` holds some of those traces (Apache-2.0, see its LICENSE): data, not code.
"""
