"""Duties: `control` runs at the active controller, `node` at every node; `minkad.core.duties` has what is pure."""
