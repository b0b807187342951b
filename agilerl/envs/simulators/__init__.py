"""Batched copies of small simulators, equal in bits to the originals, and shipped environments."""
