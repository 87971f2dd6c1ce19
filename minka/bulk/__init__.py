"""Whole partitions at once: loads of files, snapshots, changes, and the history of load. Synchronous. Not part
of the public API: Spark's jobs are, which are built on it.
"""
