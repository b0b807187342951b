"""What a push to the Hub says of the machine and its users: last parts of paths, and nobody's name or reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agilerl.views.hub_push import _public_line, without_paths


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/Secret Project/x.npz", "x.npz"),
        ("/home/ada/My Documents/client A/set.npz", "set.npz"),
        ("C:\\Users\\Ada B\\x.npz", "x.npz"),
        ("C:/Users/Ada B/x.npz", "x.npz"),
        ("\\\\server\\My Share\\x.npz", "x.npz"),
        ("file:///data/Secret Project/my set.npz", "my set.npz"),
        ("~/My Docs/x.npz", "x.npz"),
        ("/data/Secret Project/", "Secret Project"),
        ("/data/Secret Project/dqn-0001 member 3", "dqn-0001 member 3"),
        ("read /data/Secret Project/x.npz twice", "read x.npz twice"),
        ("/a b/x.npz and /c d/y.npz", "x.npz and y.npz"),
        ("see /data/x.npz and/or a b/c", "see x.npz and/or a b/c"),
        ("see /data/set, then a/b", "see set, then a/b"),
        ("cannot read C:\\Users\\Ada B\\x.npz now", "cannot read x.npz now"),
        ("note:/data/Secret/x.npz", "note:x.npz"),
        ("https://host/a b/c", "https://host/a b/c"),
        ("/x.npz", "/x.npz"),  # it names no folder
        ("/", "/"),
    ],
)
def test_folders_with_spaces_are_cut_too(text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert without_paths({text: [text]}) == {expected: [expected]}


def test_a_request_is_pushed_without_its_author_and_reason() -> None:
    request: dict[str, Any] = {
        "generation": 1, "request": "1-2", "action": "set", "member": 0, "name": "lr", "value": 0.1,
        "reason": "client A waits", "author": "ada", "result": {"born": [3]}, "kind": "steering",
    }  # fmt: skip
    public = json.loads(_public_line(json.dumps(request), is_json=True))
    assert public == {**request, "author": "", "reason": ""}


def test_cells_of_metrics_are_cut_one_by_one() -> None:
    assert _public_line('1,,"/data/Secret Project/x.npz","a, b"', is_json=False) == '1,,x.npz,"a, b"'
