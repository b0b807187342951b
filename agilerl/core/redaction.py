"""Redaction of keys and passwords in files, logs and messages."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

HIDDEN = "***"
_NAMES = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)", re.IGNORECASE)
_SHORTEST = 8  # shorter values may occur in texts by chance


class Secret:
    """A value that only `reveal` returns: not `str`, `repr`, formatting, JSON or pickle."""

    __slots__ = ("_reveal",)

    def __init__(self, value: str) -> None:
        self._reveal: Callable[[], str] = lambda: value  # values in closures are not in __dict__

    def reveal(self) -> str:
        """The value."""
        return self._reveal()

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> Any:
        raise TypeError("a secret is not written anywhere")


def is_secret_name(name: str) -> bool:
    """Whether a key or an environment variable is named like a secret."""
    return bool(_NAMES.search(name))


def redact(text: str, *secrets: Secret | None) -> str:
    """`text` with `***` in place of the secrets and the values of environment variables named like secrets."""
    values = [secret.reveal() for secret in secrets if secret is not None]
    values += [value for name, value in os.environ.items() if is_secret_name(name) and len(value) >= _SHORTEST]
    for value in sorted({value for value in values if value}, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def without_secrets(tree: object) -> Any:
    """A copy of nested plain data with `***` in place of values whose keys are named like secrets."""
    if isinstance(tree, Mapping):
        hidden = {key for key, value in tree.items() if is_secret_name(str(key)) and isinstance(value, str)}
        return {key: HIDDEN if key in hidden else without_secrets(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_secrets(part) for part in tree]
    return redact(tree) if isinstance(tree, str) else tree
