"""Wrappers of multi-turn games at their former path; see `agilerl.core.moved`."""

from agilerl.core.moved import forward

__getattr__ = forward(__name__)
