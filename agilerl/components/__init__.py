"""Replay: transitions in preallocated rows, and the published ways in and out."""
