"""Settings without a measured gain. They work and are tested, and a minor version may change or drop them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agilerl.config.schema import Manifest, as_set, value_at
from agilerl.hpo.schemes import SCHEMES


@dataclass(frozen=True)
class Experimental:
    """A setting that is experimental with some of its values.

    Attributes:
        key: dotted. usual: the values that are not experimental. evidence: what measurements say of the others.
        path: "module:name" of what implements it; empty for schemes (`hpo.schemes`).
    """

    key: str
    usual: tuple[Any, ...]
    evidence: str
    path: str = ""


SCHEME = Experimental(
    "evolution.scheme", tuple(name for name, row in SCHEMES.items() if not row.evidence),
    "; ".join(f"`{name}`: {row.evidence}" for name, row in SCHEMES.items() if row.evidence),
)  # fmt: skip
MODE = Experimental(
    "evolution.mode", ("generations",), "its scores were not compared with those of generations",
    "agilerl.experimental.asynchronous:AsynchronousLoop",
)  # fmt: skip
EXPERIMENTAL = (SCHEME, MODE)


def experimental_in(manifest: Manifest) -> list[str]:
    """Return the experimental settings of a manifest, as they are typed after `--set`."""
    values = {row: value_at(manifest, row.key) for row in EXPERIMENTAL}
    return [
        as_set(row.key, value) for row, value in values.items()
        if value not in row.usual and (row is not SCHEME or value in SCHEMES)
    ]  # fmt: skip
