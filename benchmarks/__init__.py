"""Benchmarks of Minka beside its peers etcd and Redis, which are started on the same machine and disk."""
