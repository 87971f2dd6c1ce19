"""The data port of a node: keys and values for clients, and the replication between nodes."""
