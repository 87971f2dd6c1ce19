"""Replicas with their logs and data: stores, applies and flushes entries."""
