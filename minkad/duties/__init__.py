"""The part of every node in duties: payloads, the requests of clients, the sessions of shards."""
