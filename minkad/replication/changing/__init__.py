"""Changes of replicas: rows, splits, loads, damage, in-sync sets."""
