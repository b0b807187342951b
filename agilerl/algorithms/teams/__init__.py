"""Shared parts of multi-agent algorithms."""
