"""The cluster's decisions, without I/O, clock or randomness: state and commands in, records and plans out."""
