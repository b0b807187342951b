"""Documents for readers of the code: every paper that it cites is in docs/papers.md; files that they name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("page", ["docs/papers.md", "docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    for name in re.findall(r"`([\w/]+\.(?:py|md))`", (ROOT / page).read_text(encoding="utf-8")):
        assert (PACKAGE / name).is_file() or (ROOT / name).is_file(), name


def test_where_the_table_of_moves_points_there_is_a_file() -> None:
    table = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8").split("## What moved where")[1]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    for _, _, now, _ in rows:
        for name in re.findall(r"`([\w/]+\.py)`", now):
            assert (PACKAGE / name).is_file(), name
