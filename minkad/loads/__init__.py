"""Files of loads on a node, until the replicas here have taken them in and no other node needs them."""
