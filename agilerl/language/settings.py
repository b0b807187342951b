"""Types of arguments that name a language model and its adapter."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import BeforeValidator

from agilerl.core import foreign


def _text(value: object) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _settings(value: Any) -> Any:
    """Reduce a PEFT configuration to its non-default fields; a mapping is unchanged."""
    if not foreign.has_methods(value, "to_dict"):
        return value
    usual, required = type(value)().to_dict(), ("peft_type", "r", "lora_alpha")
    changed = {k: v for k, v in value.to_dict().items() if v != usual.get(k) or k in required}
    plain = {k: sorted(v) if isinstance(v, set | frozenset) else foreign.value(v) for k, v in changed.items()}
    return {k: v for k, v in plain.items() if v is not None}


ModelName = Annotated[str | None, BeforeValidator(_text)]
"""The folder or hub id of a language model."""
AdapterSettings = Annotated[dict[str, Any] | None, BeforeValidator(_settings)]
"""Fields of a configuration of PEFT."""
