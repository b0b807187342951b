"""Policies of other libraries as agents: their files, their layouts, and the same functions in networks that evolve."""
