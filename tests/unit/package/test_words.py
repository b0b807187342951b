"""The comparison of two commits without their words."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
import pytest
from words import code_of

BEFORE = '''"""One."""
def f(x):
    """Two."""
    if x: raise ValueError(f"no {x} of three is left")  # four
    return {"key": "a value"}
'''


def test_docstrings_and_comments_are_words() -> None:
    other = BEFORE.replace("One", "Another").replace("Two", "Other").replace("four", "five").replace("(x)", "( x )")
    assert code_of(other) == code_of(BEFORE)


def test_messages_are_words_where_asked() -> None:
    other = BEFORE.replace("no {x} of three is left", "unknown: {x}").replace("a value", "the value")
    assert code_of(other) != code_of(BEFORE)
    assert code_of(other, without_messages=True) == code_of(BEFORE, without_messages=True)


def test_keys_and_what_is_shown_are_code() -> None:
    for old, new in (("key", "other"), ("{x}", "{x!r}"), ("if x", "if not x")):
        changed = BEFORE.replace(old, new)
        assert code_of(changed, without_messages=True) != code_of(BEFORE, without_messages=True), old


LOCALS = """
def public(rows):
    found = [row for row in rows]
    def inner(number):
        return number + len(found)
    return inner(found)

def _private(given):
    return given.given
"""


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("found", "columns", True),
        ("number", "count", True),
        ("(given", "(value", False),
        ("found", "row", False),
        ("found", "len", False),
        ("rows", "lines", False),
        (".given", ".other", False),
    ],
)
def test_names_of_locals_may_differ_where_they_are_told_apart(old: str, new: str, is_same: bool) -> None:
    renamed = LOCALS.replace(old, new)
    assert (code_of(renamed, without_names=True) == code_of(LOCALS, without_names=True)) == is_same
    assert code_of(renamed) != code_of(LOCALS)


def test_arguments_of_private_functions_are_locals() -> None:
    renamed = LOCALS.replace("given)", "value)").replace("given.", "value.")
    assert code_of(renamed, without_names=True) == code_of(LOCALS, without_names=True)
