"""Everything between a client's call and the nodes: routing, batching, repetition, connections. Not part of the public
API.
"""
