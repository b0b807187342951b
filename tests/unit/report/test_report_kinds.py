"""Kinds of births in a report."""

from __future__ import annotations

from pathlib import Path

from agilerl import report
from agilerl.report.page import KINDS


def test_every_kind_of_birth_has_a_colour_in_light_and_dark_and_in_print() -> None:
    style = (Path(report.__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    for kind in KINDS:
        assert style.count(f"--k-{kind}:") == 3, kind
        assert f".k-{kind}{{stroke:var(--k-{kind})}}" in style, kind
