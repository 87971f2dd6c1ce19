"""Facts of a cluster that clients, tools and nodes share: its table, slots and ranges of keys, names, clocks. Pure."""
