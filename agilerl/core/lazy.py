"""Packages that import a published name on its first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attributes(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package; `homes`: its modules, with the names that each publishes."""
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name in homes:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = vars(import_module(f"{package}.{home_of[name]}"))[name]
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *home_of, *homes})
