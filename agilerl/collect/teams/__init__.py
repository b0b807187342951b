"""Collectors for teams of several agents."""
