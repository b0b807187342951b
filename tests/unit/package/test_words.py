"""The comparison of two commits without their words."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
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
