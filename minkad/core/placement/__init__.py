"""Planners: pure functions from a snapshot of the table to a plan."""

from minkad.core.placement.reassign import plan_reassign

__all__ = ["plan_reassign"]
