"""Messages and services of protocol version 1. Everything else in this folder is generated: see `make protos`."""
