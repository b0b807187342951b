"""Module path of earlier versions; see `agilerl.moved` for the new one."""

from agilerl.moved import forward

__getattr__ = forward(__name__)
