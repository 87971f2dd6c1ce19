"""The calls of an administrator: keyspaces, plans, operations, nodes."""
