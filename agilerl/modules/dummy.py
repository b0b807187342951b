"""Published import path of the wrapper of any module."""

from agilerl.modules.base import DummyEvolvable

__all__ = ["DummyEvolvable"]
