"""Old import path; see `agilerl.moved` for the new location."""

from agilerl.moved import forward

__getattr__ = forward(__name__)
