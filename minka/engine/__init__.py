"""How a client's calls reach the nodes: routing, batching, repetition, connections. Not part of the public API."""
