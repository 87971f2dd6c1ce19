"""One node: how it joins, what it knows of its health, and the wiring of all its parts."""
