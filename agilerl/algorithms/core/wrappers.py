"""Import path of earlier published versions; see `agilerl.core.moved`."""

from agilerl.core.moved import forward

__getattr__ = forward(__name__)
