"""The controller's part in duties: the changes of clients, how shards come and go, and which shard gets which duty."""
