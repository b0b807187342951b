"""Language models: tokenizers, frozen bases, adapters. Imports are lazy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agilerl.errors import ConfigError

if TYPE_CHECKING:
    from agilerl.language.tiny import tiny_base, tiny_tokenizer
    from agilerl.language.tokenizer import check_fingerprint, fingerprint, load_tokenizer

__all__ = ["check_fingerprint", "fingerprint", "load_tokenizer", "needs", "tiny_base", "tiny_tokenizer"]

_WHERE = {
    "check_fingerprint": "agilerl.language.tokenizer",
    "fingerprint": "agilerl.language.tokenizer",
    "load_tokenizer": "agilerl.language.tokenizer",
    "tiny_base": "agilerl.language.tiny",
    "tiny_tokenizer": "agilerl.language.tiny",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'agilerl.language' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


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
