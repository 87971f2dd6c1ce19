"""Whole partitions at once: loads of files, snapshots, changes, and the history of load. Synchronous."""
