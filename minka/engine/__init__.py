"""The way of a client's calls to the nodes: routing, batching, repetition, connections. Not part of the public API."""
