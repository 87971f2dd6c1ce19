"""Duties: pieces of your own work that a Minka cluster hands out to your own processes."""
