"""Kinds of births in a report."""

from __future__ import annotations

from pathlib import Path

from agilerl.hpo.kinds import KINDS
from agilerl.views import report, watch
from agilerl.views.report.page import TITLES

# Other kinds are drawn like copies.
COLOURED = {name: title for name, title in TITLES.items() if name not in KINDS or KINDS[name].argument}


def test_every_kind_of_birth_has_a_colour_in_light_and_dark_and_in_print() -> None:
    style = (Path(report.__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    assert ".edge{fill:none;stroke:var(--k-none)" in style
    for kind in COLOURED:
        assert style.count(f"--k-{kind}:") == 3, kind
        assert f".k-{kind}{{stroke:var(--k-{kind})}}" in style, kind


def test_the_live_page_knows_every_kind_of_birth() -> None:
    static = Path(watch.__file__).parent / "static"
    style, script = ((static / name).read_text(encoding="utf-8") for name in ("watch.css", "lineage.js"))
    for kind, name in COLOURED.items():
        assert style.count(f"--k-{kind}:") == 2, kind
        assert f'{kind}: "{name}"' in script, kind
