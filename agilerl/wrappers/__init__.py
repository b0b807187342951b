"""Wrappers around networks, agents and environments."""
