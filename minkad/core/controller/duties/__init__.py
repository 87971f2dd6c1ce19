"""The controller's part in duties: what clients change, how shards come and go, and which shard gets what."""
