"""The daemon that runs on each node."""
