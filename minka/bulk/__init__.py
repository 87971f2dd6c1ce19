"""Synchronous clients for whole partitions: loads of files, snapshots, changes, and the history of traffic. They aren't
part of the public API; Minka's jobs on Spark, which use them, are.
"""
