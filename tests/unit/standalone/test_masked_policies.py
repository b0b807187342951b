"""Agents that trained with masks of legal actions say so, in every form in which they leave the package."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agilerl
from agilerl import errors
from agilerl.errors import AgileRLWarning
from agilerl.telemetry.record import BaseSink
from agilerl.views.export import export_onnx, sample_masks
from agilerl.views.standalone.policy import PolicyError, build
from agilerl.views.standalone.policy import load as load_plain
from tests.probe.environments import MaskedActionEnv

SHORT: dict[str, Any] = {
    "population": 2, "num_envs": 2, "steps": 32, "training.evo_steps": 16, "eval_episodes": 2, "verbose": False,
    "batch_size": 8, "elite_rescore_episodes": 0, "latent_dim": 8,
}  # fmt: skip
BY_ALGO: dict[str, dict[str, Any]] = {
    "DQN": {"learning_delay": 8, "learn_step": 4},
    "RainbowDQN": {"learning_delay": 8, "learn_step": 4, "random_steps": 8},
    "PPO": {"learn_step": 8, "update_epochs": 1},
    "SAC": {"learning_delay": 8, "learn_step": 4, "random_steps": 8},
}


class Said(BaseSink):
    """Keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture(autouse=True)
def _unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())


@pytest.mark.parametrize("algo", BY_ALGO)
def test_a_run_with_masks_says_so_everywhere_and_its_agents_ask_for_them(algo: str, tmp_path: Path) -> None:
    said = Said()
    with warnings.catch_warnings():
        warnings.simplefilter("error", AgileRLWarning)  # training and evaluation give the masks
        run = agilerl.train(MaskedActionEnv, algo, out=tmp_path, sinks=[said], **SHORT, **BY_ALGO[algo])
        run.best.evaluate(episodes=2)
    assert [text for text in said.messages if "masks of legal actions (info['action_mask'])" in text] == said.messages
    assert len(said.messages) == 1
    assert run.path is not None
    assert json.loads((run.path / "run.json").read_text())["result"]["action_masks"] is True
    assert json.loads((run.path / "best/policy.json").read_text())["action_masks"] is True
    loaded = agilerl.load(run.path).best
    space = loaded.observation_space
    obs = np.stack([space.sample()]) if space.shape else np.array([space.sample()])
    with pytest.warns(AgileRLWarning, match=r"was trained with masks .* fix: agent\.get_action\(obs, action_mask="):
        loaded.get_action(obs)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AgileRLWarning)
        loaded.get_action(obs)  # said once
    plain, mask = load_plain(run.path / "best"), np.array([[1, 0] if loaded.action_space.n == 2 else [1, 0, 0]])
    with pytest.warns(UserWarning, match=r"trained with masks .* fix: policy\.act\(obs, info") as caught:
        unmasked = plain.act(obs)
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    np.testing.assert_array_equal(unmasked.numpy(), loaded.act(obs))
    assert plain.act(obs, mask).tolist() == plain.act(obs, mask=mask).tolist() == [0]
    assert plain.act(obs, action_mask=mask).tolist() == [0], "the name of earlier versions"
    assert loaded.act(obs, mask=mask).tolist() == [0]


def test_runs_without_masks_say_nothing(tmp_path: Path) -> None:
    said = Said()
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, sinks=[said], **SHORT, **BY_ALGO["DQN"])
    assert run.path is not None
    assert said.messages == []
    assert "action_masks" not in json.loads((run.path / "run.json").read_text())["result"]
    assert "action_masks" not in json.loads((run.path / "best/policy.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("error", AgileRLWarning)
        run.best.get_action(np.zeros((1, 4), np.float32))


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["DQN", pytest.param("PPO", marks=pytest.mark.slow)])
def test_the_onnx_program_takes_masks_and_no_illegal_action(algo: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    run = agilerl.train(MaskedActionEnv, algo, out=None, **SHORT, **BY_ALGO[algo])
    report = export_onnx(run.best, tmp_path / "policy.onnx", rows=500)
    assert report.different_actions == 0
    session = onnxruntime.InferenceSession(str(report.path), providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()] == ["observation", "action_mask"]
    masks = sample_masks(run.best.action_space, 500, 3)
    obs = np.zeros((500, *run.best.observation_space.shape), run.best.observation_space.dtype)
    actions = session.run(None, {"observation": obs, "action_mask": masks})[0]
    assert masks[np.arange(500), actions].all()


def test_masks_to_compare_by_leave_an_action_in_every_component() -> None:
    import gymnasium as gym

    masks = sample_masks(gym.spaces.MultiDiscrete([2, 3]), 400, 0)
    assert masks.shape == (400, 5)
    assert masks[:, :2].any(1).all()
    assert masks[:, 2:].any(1).all()
    assert 0.4 < masks.mean() < 0.75


def test_a_policy_of_absurdly_many_layers_is_refused_before_one_is_made() -> None:
    space = {"type": "Box", "shape": [1], "low": ["0"], "high": ["1"], "dtype": "float32"}
    deep, head = {"hidden_size": [1] * 100_000, "activation": "ReLU"}, {"hidden_size": [1]}
    network = {"class": "QNetwork", "encoder_config": deep, "head_config": head, "latent_dim": 1}
    network |= {"observation_space": space, "action_space": {"type": "Discrete", "n": 2, "start": 0}}
    with pytest.raises(PolicyError, match="100000 hidden layers; at most 64"):
        build({"network": network}, {})
