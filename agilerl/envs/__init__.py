"""Environments: creation by name, vectorised stepping, descriptions as data."""
