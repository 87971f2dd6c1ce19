"""What belongs to the process as a whole, and any layer may use: clocks, turns of the loop, memory, counters, logs."""
