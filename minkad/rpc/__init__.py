"""gRPC: what this node answers, and how it reaches the others."""
