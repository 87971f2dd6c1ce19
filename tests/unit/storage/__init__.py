"""Tests of the databases, one by one."""
