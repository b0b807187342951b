"""Wrappers around agents and custom networks."""
