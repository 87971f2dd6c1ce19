"""Pure functions that clients, tools and nodes share: on tables, slots and ranges of keys, names and clocks."""
