"""gRPC: the services of this node, and its calls to other nodes."""
