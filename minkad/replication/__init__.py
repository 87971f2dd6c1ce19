"""The data plane of one node: replicas, their logs, requests, and the moving of partitions."""
