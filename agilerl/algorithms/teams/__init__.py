"""Algorithms for several agents."""
