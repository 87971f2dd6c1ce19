"""Duties at this node: the sessions of shards, payloads, and what clients ask."""
