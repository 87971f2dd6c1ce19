"""What travels between clients and nodes, and how values are stored: frames, operations on keys, rows of history."""
