"""One node: its joining, its view of its health, and the wiring of all its parts."""
