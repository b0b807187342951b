"""Module path of earlier versions; see `agilerl.core.moved` for the new one."""

from agilerl.core.moved import forward

__getattr__ = forward(__name__)
