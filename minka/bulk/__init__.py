"""Synchronous clients for whole partitions: loads of files, snapshots, changes, and the history of traffic. Minka's
jobs on Spark use these clients. The jobs are part of the public API; the clients are not.
"""
