"""Benchmarks that compare Minka with etcd and Redis on the same machine and disk."""
