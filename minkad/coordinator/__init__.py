"""What drives the pure core on this node: the Ready loop, the controller while active, this node's membership."""
