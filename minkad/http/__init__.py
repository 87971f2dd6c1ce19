"""HTTP: metrics, health, and the REST interface to pallets and duties."""
