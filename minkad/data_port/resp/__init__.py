"""Redis's protocol (RESP 2 and 3) on the data port, with the commands for strings and for Redis Cluster."""
