"""Collectors for language policies: prompts, preference pairs, examples and multi-turn games."""
