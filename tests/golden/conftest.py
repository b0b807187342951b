"""Stored results are those of the updates in torch, whether or not the kernels in C were built."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGILERL_NATIVE", "0")
