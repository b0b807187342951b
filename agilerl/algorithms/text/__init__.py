"""Algorithms of language models and of tokens."""
