"""HTTP: metrics and health."""
