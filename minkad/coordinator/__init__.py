"""The drivers of the pure core on this node: the Ready loop, the active controller, this node's membership."""
