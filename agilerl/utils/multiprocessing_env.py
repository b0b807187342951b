"""Path of earlier published versions; see `agilerl.moved`."""

from agilerl.moved import forward

__getattr__ = forward(__name__)
