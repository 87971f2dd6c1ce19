"""The data plane of one node: replicas, their logs, clients' requests, and the moving of partitions."""
