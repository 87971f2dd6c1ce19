"""Replicas come, go and change: rows, splits, loads, damage, in-sync sets."""
