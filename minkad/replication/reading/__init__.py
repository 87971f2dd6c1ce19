"""Whole partitions for readers: snapshots, changes, counts and reports."""
