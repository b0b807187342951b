"""Probe environments whose values are known, to test that an algorithm learns what it should."""
