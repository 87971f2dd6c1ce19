"""What clients, tools and nodes know alike of a cluster: its table, slots and ranges of keys, names, clocks. Pure."""
