"""The active controller's part in duties, and its requests."""
