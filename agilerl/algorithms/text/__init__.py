"""Algorithms for language models and token decoders."""
