"""Freed memory goes back to the system, where its library can do that."""

from __future__ import annotations

import ctypes

import pytest

from agilerl.core.host import return_freed_memory


def test_it_says_whether_the_library_can_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Glibc:
        malloc_trim = staticmethod(lambda size: calls.append(size.value))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Glibc())
    assert return_freed_memory()
    assert calls == [0]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not return_freed_memory()
