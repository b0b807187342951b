"""Wrappers of multi-turn games at their former path; see `agilerl.moved`."""

from agilerl.moved import forward

__getattr__ = forward(__name__)
