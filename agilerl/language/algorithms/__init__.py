"""Shared parts of algorithms for language models and token decoders."""
