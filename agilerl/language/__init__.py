"""Language models: tokenizers, frozen bases, adapters. Imports are lazy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agilerl.core.lazy import attributes
from agilerl.errors import ConfigError

if TYPE_CHECKING:
    from agilerl.language.tiny import tiny_base, tiny_tokenizer
    from agilerl.language.tokenizer import check_fingerprint, fingerprint, load_tokenizer

__all__ = ["check_fingerprint", "fingerprint", "load_tokenizer", "needs", "tiny_base", "tiny_tokenizer"]

_HOMES = {"tiny": "tiny_base tiny_tokenizer", "tokenizer": "check_fingerprint fingerprint load_tokenizer"}
__getattr__, __dir__ = attributes(__name__, _HOMES)


def needs(package: str, what: str = "language models") -> Any:
    """Import an optional package.

    Args:
        package: the module's name, "transformers" or "peft.tuners".
        what: the feature that needs it, for the message.

    Raises:
        ConfigError: it is not installed; the message has the command that installs it.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        missing = error.name or package
        raise ConfigError(f'{what}: {missing} is not installed. fix: pip install "agilerl[llm]"') from None
