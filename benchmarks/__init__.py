"""What Minka does in a second, beside its peers: etcd and Redis, started for it on the same machine and disk."""
