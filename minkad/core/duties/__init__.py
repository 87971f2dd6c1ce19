"""Duties, pure: their table, their control by the active controller, their placement on shards."""
