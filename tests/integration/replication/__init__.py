"""Replica managers in one process, with real gRPC on loopback and real RocksDB."""
