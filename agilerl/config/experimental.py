"""Settings without a measured gain. They work and are tested, and a minor version may change or drop them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agilerl.config.schema import Manifest, as_typed, value_at


@dataclass(frozen=True)
class Experimental:
    """A setting that is experimental with some of its values.

    Attributes:
        key: dotted. usual: the values that are not experimental. evidence: what measurements say of the others.
    """

    key: str
    usual: tuple[Any, ...]
    evidence: str


EXPERIMENTAL = (
    Experimental(
        "evolution.scheme", ("tournament", "race", "halving"),
        "`pbt` of 16 members was behind a race on MinAtar/Breakout-v1; `pb2` and `mf_pbt` were not measured",
    ),
    Experimental("evolution.mode", ("generations",), "its scores were not compared with those of generations"),
    Experimental("mutation.reset_dormant", (None,), "not measured"),
)  # fmt: skip


def experimental_in(manifest: Manifest) -> list[str]:
    """Return the experimental settings of a manifest, as they are typed after `--set`."""
    values = {each: value_at(manifest, each.key) for each in EXPERIMENTAL}
    return [f"{each.key}={as_typed(value)}" for each, value in values.items() if value not in each.usual]
