"""Tests of a node's databases and files, without replication."""
