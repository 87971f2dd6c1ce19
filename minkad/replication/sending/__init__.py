"""Entries and checkpoints between leaders and followers, at both ends."""
