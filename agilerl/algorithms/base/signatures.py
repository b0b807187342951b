"""Constructors that take the arguments of their parent's, and some more."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import get_type_hints


def extends(parent: Callable[..., None], before: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a constructor `(self, *args, <its own keyword-only arguments>, **kwargs)` show those of `parent` too.

    `inspect.signature` and what `declared` reads of it are then as if all arguments were written out: the parent's in
    its order, with the constructor's own ones before the argument `before`.

    Args:
        parent: the constructor that `*args` and `**kwargs` are handed on to.
    """

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        written, shown = inspect.signature(init), []
        own = [p for p in written.parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
        for name, parameter in inspect.signature(parent).parameters.items():
            shown += [*own, parameter] if name == before else [parameter]
        init.__signature__ = written.replace(parameters=shown)  # type: ignore[attr-defined]
        hints = {**get_type_hints(parent, include_extras=True), **get_type_hints(init, include_extras=True)}
        init.__annotations__ = {p.name: hints[p.name] for p in shown if p.name in hints} | {"return": None}
        return init

    return decorate
