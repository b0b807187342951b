"""Wrappers around agents, and around networks of the user's own."""
