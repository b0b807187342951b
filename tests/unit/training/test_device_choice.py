"""Which device `--device auto` is, and which names are refused; a GPU is only pretended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from typer.testing import CliRunner

import agilerl
from agilerl.cli import app
from agilerl.config import manifest_from
from agilerl.errors import ConfigError
from agilerl.training.manifest.device import MAX_DENSE_UNITS, choose_device, resolve_device


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


def chosen(asked: str = "auto", **sections: Any) -> tuple[str, str]:
    found = choose_device(asked, manifest_from(sections, "test"))
    return found.name, found.reason


@pytest.mark.usefixtures("one_gpu")
def test_auto_is_the_cpu_for_small_dense_networks_and_the_gpu_otherwise() -> None:
    limit, wide = MAX_DENSE_UNITS, MAX_DENSE_UNITS + 1
    small = ("cpu", f"dense layers of at most {limit} units; --device cuda takes the GPU")
    assert chosen() == small
    assert chosen(network={"encoder_config": {"hidden_size": [limit, limit]}}) == small
    assert chosen(network={"encoder_config": None, "encoder": {"hidden_size": [64]}}) == small
    other = ("cuda", f"layers of {wide} units")
    assert chosen(network={"encoder_config": {"hidden_size": [64, wide]}}) == other
    assert chosen(network={"head_config": {"hidden_size": [wide]}}) == other
    assert chosen(network={"latent_dim": wide, "max_latent_dim": wide}) == other
    assert chosen(network={"encoder_config": None, "encoder": {"hidden_size": [wide]}}) == other
    images = {"encoder_config": None, "encoder": {"channel_size": [16], "kernel_size": [3], "stride_size": [1]}}
    assert chosen(network=images) == ("cuda", "an encoder of other than dense layers")
    assert chosen(network={"simba": True}) == ("cuda", "an encoder of other than dense layers")
    assert chosen(algorithm={"name": "GRPO"}) == ("cuda", "a language model")
    for asked in ("cpu", "cuda", "cuda:0"):
        assert chosen(asked) == (asked, "as asked")


@pytest.mark.usefixtures("one_gpu")
def test_teams_that_observe_images_train_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    vector, image = spaces.Box(-1, 1, (4,)), spaces.Box(0, 255, (32, 32, 3), np.uint8)
    manifest = manifest_from({"algorithm": {"name": "MADDPG"}}, "test")

    class Team:
        def __init__(self, *seen: spaces.Space[Any]) -> None:
            self.observation_space = dict(enumerate(seen))

        @classmethod
        def observing(cls, *seen: spaces.Space[Any]) -> str:
            task = type("Task", (), {"spaces": lambda self, env: cls(*seen)})
            monkeypatch.setattr("agilerl.training.manifest.tasks.task_of", lambda manifest: task())
            return choose_device("auto", manifest).name

    assert Team.observing(vector, vector) == "cpu"
    assert Team.observing(vector, image) == "cuda"


def test_without_a_gpu_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen(network={"latent_dim": 1000, "max_latent_dim": 1000}) == ("cpu", "PyTorch finds no CUDA GPU")


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("mps", "'mps' is not supported: optimisers count their steps in float64.* fix: --device cpu"),
        ("mps:0", "'mps:0' is not supported"),
        ("meta", "unknown device 'meta'. fix: use auto, cpu, cuda"),
        ("gpu", "unknown device 'gpu'. fix: use auto, cpu, cuda"),
        ("cuda:3", "there are 1 CUDA GPUs. fix: --device cuda:0"),
    ],
)
@pytest.mark.usefixtures("one_gpu")
def test_a_device_that_cannot_train_is_named_with_the_fix(asked: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        resolve_device(asked)


def test_an_unsupported_device_leaves_no_files(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="'mps' is not supported"):
        agilerl.train("CartPole-v1", device="mps", out=tmp_path, verbose=False)
    assert not list(tmp_path.iterdir())


def test_a_dry_run_says_where_it_would_train_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = CliRunner().invoke(app, ["train", "CartPole-v1", "--dry-run"]).output.splitlines()
    expected = choose_device("auto", manifest_from({}, "test"))
    assert f"# device: {expected}" in lines
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    lines = CliRunner().invoke(app, ["train", "CartPole-v1", "--dry-run"]).output.splitlines()
    assert f"# device: cpu (dense layers of at most {MAX_DENSE_UNITS} units; --device cuda takes the GPU)" in lines
    plain = CliRunner().invoke(app, ["train", "CartPole-v1", "--dry-run", "--device", "cpu"]).output
    assert "# device" not in plain
