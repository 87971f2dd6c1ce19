"""RocksDB: the log database of a node, the data databases of its partitions, and their checkpoints."""
