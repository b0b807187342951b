"""Published import path of `DummyEvolvable`."""

from agilerl.modules.base import DummyEvolvable

__all__ = ["DummyEvolvable"]
