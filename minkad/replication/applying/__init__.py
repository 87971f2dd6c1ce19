"""Replicas with their logs and data: entries are stored, applied, flushed."""
