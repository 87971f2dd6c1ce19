"""Tests of replica managers: all nodes are in one process, with real data ports on loopback and real RocksDB."""
