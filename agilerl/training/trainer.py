"""Old import path; see `agilerl.core.moved` for the new location."""

from agilerl.core.moved import forward

__getattr__ = forward(__name__)
