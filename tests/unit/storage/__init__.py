"""The databases, one by one."""
