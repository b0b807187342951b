"""Limits of README.md: its length, its single table, and links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_LINES, MAX_CHARACTERS, MAX_ROWS = 130, 8_500, 12


def tables(text: str) -> list[int]:
    """Number of body rows of each table, outside of fenced blocks."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    blocks = re.findall(r"(?:^[ \t]*\|.*\n)+", text, re.M)
    return [len(block.splitlines()) - 2 for block in blocks]


def anchors(page: Path) -> set[str]:
    """Ids that mkdocs and GitHub give to plain headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_length() -> None:
    assert len(README.splitlines()) <= MAX_LINES
    assert len(README) <= MAX_CHARACTERS


def test_one_short_table_of_results() -> None:
    rows = tables(README)
    assert len(rows) == 1
    assert 1 <= rows[0] <= MAX_ROWS


def test_tables_are_found() -> None:
    assert tables("| a | b |\n|---|---|\n| 1 | 2 |\n\ntext\n\n| c |\n|---|\n| 3 |\n| 4 |\n") == [1, 2]
    assert tables("```text\n| a |\n|---|\n| 1 |\n```\n") == []


def test_one_picture() -> None:
    assert len(re.findall(r"!\[[^\]]+\]\(", README)) == 1


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", README)
    assert len(links) > 10
    for link in links:
        name, _, anchor = link.partition("#")
        page = ROOT / name
        assert page.is_file(), link
        assert not anchor or anchor in anchors(page), link
