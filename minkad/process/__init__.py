"""Parts of the process as a whole, which any layer may use: clocks, turns of the loop, memory, counters, logs."""
