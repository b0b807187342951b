"""Wrappers around agents."""
