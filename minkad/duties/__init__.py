"""What every node serves of duties: payloads, the requests of clients, the sessions of shards."""
