"""Path of earlier published versions; `agilerl.moved` says what is where now."""

from agilerl.moved import forward

__getattr__ = forward(__name__)
