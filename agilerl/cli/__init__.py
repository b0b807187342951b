"""The `agilerl` command. Heavy imports are deferred until a command needs them."""

from agilerl.cli.main import app

__all__ = ["app"]
