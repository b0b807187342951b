"""The `agilerl` command. Nothing heavy is imported before a command needs it."""

from agilerl.cli.main import app

__all__ = ["app"]
