"""Base classes and shared parts of all algorithms."""
