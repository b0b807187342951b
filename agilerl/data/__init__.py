"""Offline data sets: read, describe and record them, or use the replay of a run."""
