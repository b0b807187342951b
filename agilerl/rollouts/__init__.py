"""Collecting experience and evaluating, typed against what a population can do rather than what it is."""
