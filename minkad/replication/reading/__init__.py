"""Readers of whole partitions: snapshots, change feeds, counts and reports."""
