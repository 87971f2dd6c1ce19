"""Formats: of frames between clients and nodes, operations on keys, stored values, and rows of history."""
