"""Bandits whose features are in raw units: scales, regret, and every way in which a policy is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import agilerl
from agilerl.algorithms import NeuralTS, NeuralUCB
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.training.policy_files import write_best
from agilerl.training.train_bandits import train_bandits
from agilerl.utils.utils import create_population
from agilerl.views.export import export_onnx
from agilerl.views.standalone.policy import load
from agilerl.wrappers.learning import BanditEnv

NET = {"latent_dim": 8, "encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
ARMS = spaces.Discrete(2)


def bandit(is_raw: bool = True, seed: int = 0) -> BanditEnv:
    """Two classes by three features, in millions, in years, in millionths, and a constant."""
    x = np.random.default_rng(0).standard_normal((200, 4))
    classes = (x[:, 0] + x[:, 1] - x[:, 2] > 0).astype(int)
    if is_raw:
        x = x * [1e6, 10, 1e-6, 0] + [0, 2_000, 0, 7]
    return BanditEnv(x, classes, seed=seed)


def contexts(count: int) -> np.ndarray:
    return np.stack([bandit(seed=k).reset() for k in range(count)])


def filled(features: Any, block: int, arms: int = 2) -> np.ndarray:
    """Return contexts with `features` in a block and zeros elsewhere."""
    rows = np.zeros((len(features), arms, np.shape(features)[1]), np.float32)
    rows[:, block] = features
    return rows.reshape(len(rows), -1)


def evolved(env: BanditEnv, algo: str = "NeuralUCB", max_steps: int = 300, **more: Any) -> list[Any]:
    pop = create_population(
        algo, env.observation_space, env.action_space, NET, {"BATCH_SIZE": 16, "LR": 1e-2, "GAMMA": 0.3},
        population_size=2, seed=1,
    )  # fmt: skip
    options = {"evo_steps": 100, "eval_steps": 20, "seed": 2, "verbose": False, **more}
    return train_bandits(env, "raw", algo, pop, ReplayBuffer(max_size=1_000), max_steps=max_steps, **options)[0]


def test_the_scales_by_hand() -> None:
    """Values 96 and 104 have mean 100 and deviation 4, whatever the block; a constant of 50 is divided by 50."""
    agent = NeuralUCB(spaces.Box(-1e3, 1e3, (6,)), ARMS, net_config=NET, seed=0)
    values = [[96, 50, 0], [104, 50, 0]]
    rows = np.concatenate([filled(values, block) for block in (0, 1)] * 4)
    agent.rescale(rows, 16)
    assert (agent.actor.blocks, agent.scaled_rounds, agent.is_design_stale) == (2, 16, True)
    expected = np.concatenate([filled([[-1, 1, 0], [1, 1, 0]], block) for block in (0, 1)])
    np.testing.assert_allclose(agent.actor.preprocess(rows[:4]), expected, atol=1e-6)
    assert not agent.actor.preprocess(np.zeros((1, 6), np.float32)).any()


def test_dense_contexts_have_a_scale_for_every_input() -> None:
    agent = NeuralUCB(spaces.Box(-1e3, 1e3, (2,)), ARMS, net_config=NET, seed=0)
    agent.rescale(np.array([[96, -1], [104, 1]] * 8, np.float32), 16)
    assert agent.actor.blocks == 1
    np.testing.assert_allclose(agent.actor.preprocess(np.array([[100, 1]], np.float32)), [[0, 1]])


@pytest.mark.parametrize(
    ("rows", "asked"),
    [
        ([[3.9, -1], [-3.9, 1]] * 8, True),  # near mean 0 and deviation 1
        ([[1e6, -1], [-1e6, 1]] * 7, True),  # too few
        ([[1e6, -1], [-1e6, 1]] * 8, False),
    ],
)
def test_contexts_that_stay_as_they_are(rows: Any, asked: bool) -> None:
    space = spaces.Box(-1e9, 1e9, (2,))
    agent = NeuralUCB(space, ARMS, net_config=NET, seed=0, normalize_observations=asked)
    agent.rescale(np.array(rows, np.float32), 1)
    assert not agent.actor.normalize_observations
    assert not agent.is_design_stale


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["NeuralUCB", "NeuralTS"])
def test_regret_in_raw_units_is_that_of_standardised_features(algo: str) -> None:
    raw, standardised = (np.mean([agent.regret[-1] for agent in evolved(bandit(raw), algo)]) for raw in (True, False))
    assert standardised < 60
    assert raw < 60, "144 and 175 without scales, 150 by chance"


@pytest.mark.parametrize("cls", [NeuralUCB, NeuralTS])
def test_a_loop_of_the_script_learns_in_raw_units(cls: Any) -> None:
    env, memory = bandit(), ReplayBuffer(max_size=1_000, seed=0)
    agent = cls(env.observation_space, env.action_space, net_config=NET, lr=1e-2, batch_size=32, gamma=0.3, seed=0)
    rewards, shown = [], env.reset()
    for _ in range(150):
        arm = agent.get_action(shown)
        later, reward = env.step(arm)
        memory.add({"obs": shown[arm][None], "reward": np.array([reward], np.float32)})
        if len(memory) >= agent.batch_size:
            agent.learn(memory.sample(agent.batch_size))
        rewards.append(reward)
        shown = later
    assert np.mean(rewards[-50:]) > 0.85


def test_files_copies_and_exports_choose_alike(tmp_path: Path) -> None:
    agent = evolved(bandit(), max_steps=60, evo_steps=60)[0]
    assert agent.actor.normalize_observations
    shown = contexts(50)
    expected = agent.get_action(shown, training=False)
    assert len(set(expected.tolist())) == 2
    agent.save_checkpoint(tmp_path / "agent.pt")
    other = NeuralUCB(agent.observation_space, ARMS, net_config=NET, seed=5)
    other.load_checkpoint(tmp_path / "agent.pt")
    for twin in (agent.clone(), NeuralUCB.load(tmp_path / "agent.pt"), other):
        np.testing.assert_array_equal(twin.get_action(shown, training=False), expected)
        assert (twin.scaled_rounds, twin.actor.blocks) == (agent.scaled_rounds, 2)
    write_best(tmp_path, agent)
    np.testing.assert_array_equal(load(tmp_path / "best").act(shown).numpy(), expected)


@pytest.mark.thorough
def test_onnx_chooses_as_the_agent(tmp_path: Path) -> None:
    agent, shown = evolved(bandit(), max_steps=100)[0], contexts(100)
    runtime = pytest.importorskip("onnxruntime")
    report = export_onnx(agent, tmp_path / "policy.onnx", rows=50)
    assert report.different_actions == 0
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    chosen = session.run(None, {"observation": shown})[0]
    np.testing.assert_array_equal(chosen, agent.get_action(shown, training=False))


@pytest.mark.thorough
def test_a_run_is_resumed_with_its_scales(tmp_path: Path) -> None:
    short = {"max_steps": 60, "evo_steps": 20, "eval_steps": 5}
    whole = evolved(bandit(), resume=tmp_path / "whole", **short)
    evolved(bandit(), resume=tmp_path / "parts", callbacks=[lambda record: record.generation < 1], **short)
    parts = evolved(bandit(), resume=tmp_path / "parts", **short)
    for mine, theirs in zip(whole, parts, strict=True):
        assert mine.regret == theirs.regret
        assert mine.actor.blocks == theirs.actor.blocks == 2
        assert torch.equal(mine.sigma_inv, theirs.sigma_inv)
        assert torch.equal(mine.actor.get_buffer("obs_scale"), theirs.actor.get_buffer("obs_scale"))


@pytest.mark.thorough
def test_a_saved_run_evaluates_as_before(tmp_path: Path) -> None:
    run = agilerl.train(
        bandit(), "NeuralUCB", population=2, steps=200, evo_steps=100, out=tmp_path, verbose=False, eval_episodes=1,
        seed=0,
    )  # fmt: skip
    best = agilerl.load(run.path).best
    assert best.actor.normalize_observations
    assert best.test(bandit(seed=3), max_steps=100) == run.best.test(bandit(seed=3), max_steps=100)


def test_members_with_and_without_scales_do_not_share_a_pass() -> None:
    env = bandit()
    agents = [
        NeuralUCB(env.observation_space, ARMS, index, net_config=NET, lr=1e-2, seed=1, normalize_observations=asked)
        for index, asked in enumerate((True, False))
    ]
    memory = ReplayBuffer(max_size=1_000)
    pop, _ = train_bandits(
        env, "raw", None, agents, memory, max_steps=100, evo_steps=100, eval_steps=5, verbose=False, seed=0
    )
    assert [agent.actor.normalize_observations for agent in pop] == [True, False]
