"""Planners: a snapshot of the table in, a plan out. Pure."""

from minkad.core.placement.reassign import plan_reassign

__all__ = ["plan_reassign"]
