"""Environments: made by name, stepped as lanes, described as data."""
