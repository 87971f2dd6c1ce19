"""Requests of clients, from a frame to its answer."""
