"""Benchmarks of Minka beside its peers etcd and Redis, started on the same machine and disk."""
