"""Shared by all tests: one torch thread, the devices that are there, and no algorithms but those of the package."""

from __future__ import annotations

import pytest
import torch

from agilerl import algorithms

torch.set_num_threads(1)

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def registered_for_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is known to that test alone."""
    monkeypatch.setattr(algorithms, "_registered", dict(algorithms._registered))
