"""What an administrator does with a cluster: keyspaces, plans, operations, nodes."""
