"""The data plane of one node: it serves clients' requests, replicates logs, and moves partitions."""
