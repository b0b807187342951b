"""docs/papers.md: every paper that the code cites is in it, and the files that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agilerl"
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")


def cited() -> dict[str, set[str]]:
    """arXiv id -> files of the package that cite it."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for paper in re.findall(r"arXiv:(\d{4}\.\d{5})", path.read_text(encoding="utf-8")):
            found.setdefault(paper, set()).add(str(path.relative_to(PACKAGE)))
    return found


def test_every_paper_that_the_code_cites_has_its_files_named() -> None:
    for paper, files in cited().items():
        (row,) = [line for line in PAGE.splitlines() if f"arXiv:{paper}]" in line]
        named = set(re.findall(r"`([\w/]+\.py)`", row))
        assert files <= named, f"{paper}: {files - named}"


def test_every_file_that_the_page_names_is_there() -> None:
    for name in re.findall(r"`([\w/]+\.py)`", PAGE):
        assert (PACKAGE / name).is_file() or (ROOT / name).is_file(), name
