"""The formats between clients and nodes, and of stored values: frames, operations on keys, rows of history."""
