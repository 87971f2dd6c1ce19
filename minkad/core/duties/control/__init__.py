"""The controller's part in duties: changes by clients, the coming and going of shards, and the choice of a shard."""
