"""Shared by all tests: one torch thread, and the devices that are there."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)
