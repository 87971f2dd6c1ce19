"""Synchronous clients for whole partitions: bulk loads, snapshots, changes, and the history of the traffic."""
