"""Every node's part in duties: payloads, the requests of clients, the sessions of shards."""
