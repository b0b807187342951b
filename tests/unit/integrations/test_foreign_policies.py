"""Policies of Stable-Baselines3 and CleanRL: the same actions and values, and agents that train and evolve."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from foreign_files import (
    dqn_tensors,
    drawn,
    named,
    ppo_tensors,
    relu,
    run,
    sac_tensors,
    saved,
    sb3_zip,
    sequential,
    td3_tensors,
)
from gymnasium import spaces
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms import DDPG, DQN, PPO, SAC, TD3
from agilerl.algorithms.imported.dense import Dense, split, split_critic
from agilerl.algorithms.imported.load import load
from agilerl.cli import app
from agilerl.envs.argument import Factory
from agilerl.errors import (
    AgileRLWarning,
    AlgorithmError,
    ConfigError,
    EnvError,
    NotAvailableYetError,
    RunError,
    ShapeError,
)
from agilerl.integrations import cleanrl, sb3

OBS4 = np.random.default_rng(0).normal(0, 1, (256, 4)).astype(np.float32)
OBS3 = np.random.default_rng(1).normal(0, 1, (256, 3)).astype(np.float32)
ACTIONS = np.random.default_rng(2).uniform(-1, 1, (256, 1)).astype(np.float32)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
TINY = {
    "training.evo_steps": 64, "training.eval_episodes": 1, "training.confirm_episodes": 0, "target_score": None,
    "learning_delay": 0,
}  # fmt: skip


class Stub(gym.Env[np.ndarray, Any]):
    """Spaces alone."""

    def __init__(self, obs: Any = None, actions: Any = None) -> None:
        self.observation_space = obs or spaces.Box(-np.inf, np.inf, (4,))
        self.action_space = actions or spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, True, False, {}


BOX = Stub(spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(np.float32([-2]), np.float32([4])))  # centre 1, half 3


# --- layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["ReLU", "Tanh"])
@pytest.mark.parametrize("hidden", [(), (5,), (5, 6), (5, 6, 7), (5, 6, 7, 8)])
def test_any_depth_is_the_same_function_in_encoder_and_head(hidden: tuple[int, ...], act: str) -> None:
    layers = drawn(0, 4, *hidden, 3)
    pieces = split([Dense(weight, bias, act) for weight, bias in layers])
    assert len(pieces.encoder) >= 2
    assert len(pieces.head) >= 2
    x = torch.from_numpy(OBS4)
    for one in [*pieces.encoder, *pieces.head]:
        x = torch.nn.functional.linear(x, one.weight, one.bias)
        x = {"ReLU": torch.relu, "Tanh": torch.tanh, None: lambda y: y}[one.activation](x)
    np.testing.assert_allclose(x, run(layers, OBS4, relu if act == "ReLU" else np.tanh), **CLOSE)


def test_two_layers_of_hand_written_numbers() -> None:
    layers = [
        Dense(torch.tensor([[1.0, -1.0]]), torch.tensor([0.5]), "ReLU"),
        Dense(torch.tensor([[2.0]]), torch.tensor([1.0])),
    ]
    pieces = split(layers)
    assert [one.width for one in (*pieces.encoder, *pieces.head)] == [1, 1, 1, 1]
    assert [one.activation for one in (*pieces.encoder, *pieces.head)] == ["ReLU", "ReLU", "ReLU", None]
    tanh = split([Dense(layers[0].weight, layers[0].bias, "Tanh"), layers[1]])
    assert [one.activation for one in (*tanh.encoder, *tanh.head)] == ["Tanh", None, None, None]
    critic = split_critic(layers, 1)
    assert [one.width for one in critic.encoder] == [1, 1]
    assert critic.head[0] is layers[0]


# --- Stable-Baselines3 -----------------------------------------------------------------------------------------------


def test_a_dqn_has_the_values_of_the_file(tmp_path: Path) -> None:
    data = {"gamma": 0.9, "learning_rate": 0.005, "batch_size": 48, "tau": 1.0, "train_freq": {":serialized:": "gASV"}}
    path = sb3_zip(tmp_path / "dqn.zip", dqn_tensors(), data)
    with pytest.warns(AgileRLWarning, match=r"pickles are not read; the defaults of DQN hold for train_freq\. fix"):
        agent = sb3.load(path, Stub(), seed=1)
    assert type(agent) is DQN
    expected = run(drawn(0, 4, 5, 6, 2), OBS4, relu)
    np.testing.assert_allclose(agent.actor(OBS4).detach(), expected, **CLOSE)
    np.testing.assert_array_equal(agent.predict(OBS4)[0], expected.argmax(-1))
    np.testing.assert_allclose(agent.actor_target(OBS4).detach(), run(drawn(1, 4, 5, 6, 2), OBS4, relu), **CLOSE)
    assert (agent.gamma, agent.lr, agent.batch_size, agent.learn_step) == (0.9, 0.005, 48, 4)
    assert agent.tau == 0.01, "its target updates are copies at intervals, which are none here"


@pytest.mark.parametrize("act", ["Tanh", "ReLU"])
def test_a_ppo_has_the_distribution_and_the_value_of_the_file(tmp_path: Path, act: str) -> None:
    data = {
        "n_steps": 128,
        "n_envs": 4,
        "n_epochs": 3,
        "ent_coef": 0.0,
        "vf_coef": 0.25,
        "max_grad_norm": 0.7,
        "target_kl": None,
    }
    path = sb3_zip(tmp_path / "ppo.zip", ppo_tensors(), data)
    agent = sb3.load(path, Stub(), activation=act)
    function = np.tanh if act == "Tanh" else relu
    policy = run([*drawn(0, 4, 5, 6), *drawn(1, 6, 2)], OBS4, function)
    value = run([*drawn(2, 4, 7, 8), *drawn(3, 8, 1)], OBS4, function)
    np.testing.assert_allclose(agent.actor.output(OBS4).detach(), policy, **CLOSE)
    np.testing.assert_allclose(agent.critic(OBS4).detach(), value, **CLOSE)
    np.testing.assert_array_equal(agent.predict(OBS4)[0], policy.argmax(-1))
    names = ("learn_step", "update_epochs", "ent_coef", "vf_coef", "max_grad_norm", "target_kl", "clip_coef")
    assert [getattr(agent, name) for name in names] == [512, 3, 0.0, 0.25, 0.7, None, 0.2]


def test_box_actions_of_a_ppo_are_in_units_of_the_environment(tmp_path: Path) -> None:
    path = sb3_zip(tmp_path / "ppo.zip", ppo_tensors(3, 1, log_std=[-0.7]))
    agent = sb3.load(path, BOX)
    mean = run([*drawn(0, 3, 5, 6), *drawn(1, 6, 1)], OBS3, np.tanh)
    np.testing.assert_allclose(agent.predict(OBS3)[0], np.clip(mean, -2, 4), **CLOSE)
    raw = agent.actor.output(OBS3).detach().numpy()
    np.testing.assert_allclose(raw[:, 1], np.full(256, -0.7), rtol=1e-6)
    log_prob = agent.evaluate_actions(OBS3, mean + 0.3)[0]
    expected = -0.5 * (0.3 / math.exp(-0.7)) ** 2 + 0.7 - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(log_prob.detach(), np.full(256, expected), rtol=1e-4)


def test_the_activation_is_that_of_the_file_in_plain_text(tmp_path: Path) -> None:
    text = {":serialized:": "gASV", "activation_fn": "<class 'torch.nn.modules.activation.ReLU'>"}
    path = sb3_zip(tmp_path / "ppo.zip", ppo_tensors(), {"policy_kwargs": text})
    expected = run([*drawn(0, 4, 5, 6), *drawn(1, 6, 2)], OBS4, relu)
    np.testing.assert_allclose(sb3.load(path, Stub()).actor.output(OBS4).detach(), expected, **CLOSE)
    with pytest.raises(ConfigError, match="unknown activation 'Wavy'"):
        sb3.load(path, Stub(), activation="Wavy")
    mine = {":serialized:": "gASV", "activation_fn": "<class '__main__.Swish'>"}
    path = sb3_zip(tmp_path / "mine.zip", ppo_tensors(), {"policy_kwargs": mine})
    with pytest.raises(ConfigError, match=r"activation <class '__main__\.Swish'>, which is not one of torch\. fix"):
        sb3.load(path, Stub())
    assert sb3.load(path, Stub(), activation="ReLU").algo == "PPO"


def test_a_sac_comes_with_critics_targets_and_temperature(tmp_path: Path) -> None:
    data = {"learning_rate": 7e-4, "tau": 0.02, "target_entropy": "auto", "ent_coef": "auto"}
    variables = {"log_ent_coef": torch.tensor([math.log(0.25)])}
    path = sb3_zip(tmp_path / "sac.zip", sac_tensors(), data, pytorch_variables__pth=variables)
    agent = sb3.load(path, BOX)
    assert type(agent) is SAC
    mean = run([*drawn(0, 3, 8, 8), *drawn(1, 8, 1)], OBS3, relu)
    np.testing.assert_allclose(agent.predict(OBS3)[0], 1 + 3 * np.tanh(mean), rtol=1e-4, atol=1e-4)
    log_std = run([*drawn(0, 3, 8, 8), *drawn(2, 8, 1)], OBS3, relu)
    np.testing.assert_allclose(agent.actor.output(OBS3)[:, 1:].detach(), log_std, rtol=1e-4, atol=1e-4)
    both = np.concatenate([OBS3, ACTIONS], 1)
    for k, name in ((3, "critic_1"), (4, "critic_2"), (5, "critic_target_1"), (6, "critic_target_2")):
        expected = run(drawn(k, 4, 8, 8, 1), both, relu)
        np.testing.assert_allclose(getattr(agent, name)(OBS3, ACTIONS).detach(), expected, rtol=1e-4, atol=1e-4)
    assert agent.alpha == pytest.approx(0.25)
    assert agent.learn_temperature
    assert (agent.lr_actor, agent.lr_critic, agent.lr_alpha, agent.tau) == (7e-4, 7e-4, 7e-4, 0.02)
    fixed = sb3_zip(
        tmp_path / "fixed.zip", sac_tensors(), {}, pytorch_variables__pth={"ent_coef_tensor": torch.tensor(0.5)}
    )
    agent = sb3.load(fixed, BOX)
    assert (agent.alpha, agent.learn_temperature) == (pytest.approx(0.5), False)


def test_the_temperature_of_a_file_is_never_replaced_by_a_default(tmp_path: Path) -> None:
    def load(name: str, *alpha: float, **data: Any) -> Any:
        variables = {name: torch.tensor(alpha)}
        return sb3.load(sb3_zip(tmp_path / "m.zip", sac_tensors(), data, pytorch_variables__pth=variables), BOX)

    agent = load("ent_coef_tensor", 0.0)
    assert (agent.alpha, agent.learn_temperature) == (pytest.approx(1e-8), False)
    assert load("log_ent_coef", 0.0, target_entropy=-2).target_entropy == -2, "a negative whole number is a number"
    for alpha in ((-0.5,), (0.1, 0.2)):
        with pytest.raises(RunError, match=r"ent_coef_tensor of shape .* gives no temperature"):
            load("ent_coef_tensor", *alpha)


@pytest.mark.parametrize(("critics", "cls"), [(2, TD3), (1, DDPG)])
def test_a_deterministic_policy_is_td3_or_ddpg_by_its_critics(tmp_path: Path, critics: int, cls: type) -> None:
    path = sb3_zip(tmp_path / "td3.zip", td3_tensors(critics=critics), {"policy_delay": 3, "target_policy_noise": 0.3})
    agent = sb3.load(path, BOX)
    assert type(agent) is cls
    expected = np.tanh(run(drawn(0, 3, 8, 8, 1), OBS3, relu))
    np.testing.assert_allclose(agent.predict(OBS3)[0], 1 + 3 * expected, rtol=1e-4, atol=1e-4)
    target = np.tanh(run(drawn(1, 3, 8, 8, 1), OBS3, relu))
    np.testing.assert_allclose(agent.actor_target(OBS3).detach(), target, **CLOSE)
    first = agent.critic_1 if critics == 2 else agent.critic
    both = np.concatenate([OBS3, ACTIONS], 1)
    np.testing.assert_allclose(
        first(OBS3, ACTIONS).detach(), run(drawn(3, 4, 8, 8, 1), both, relu), rtol=1e-4, atol=1e-4
    )
    assert agent.policy_freq == 3
    assert agent.O_U_noise == (cls is DDPG), "what the file does not hold is the default of manifests"


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    data = {"gamma": True, "batch_size": 10**12, "learning_rate": {":serialized:": "gASV"}}
    path = sb3_zip(tmp_path / "dqn.zip", dqn_tensors(), data)
    with pytest.warns(AgileRLWarning, match="hold for learning_rate"):
        agent = sb3.load(path, Stub())
    usual = sb3.load(sb3_zip(tmp_path / "plain.zip", dqn_tensors()), Stub())
    assert agent.hyperparameters() == usual.hyperparameters()
    with pytest.raises(AlgorithmError, match=r"dqn.zip: DQN: gamma must be in \[0, 1\]; got 7"):
        sb3.load(sb3_zip(tmp_path / "dqn.zip", dqn_tensors(), {"gamma": 7}), Stub())


# --- CleanRL ---------------------------------------------------------------------------------------------------------


def test_cleanrls_dqn_and_ppo(tmp_path: Path) -> None:
    path = tmp_path / "dqn.cleanrl_model"
    path.write_bytes(saved(sequential(drawn(0, 4, 12, 8, 2), "network.")))
    agent = cleanrl.load(path, Stub())
    expected = run(drawn(0, 4, 12, 8, 2), OBS4, relu)
    np.testing.assert_allclose(agent.actor(OBS4).detach(), expected, **CLOSE)
    np.testing.assert_allclose(agent.actor_target(OBS4).detach(), expected, **CLOSE)
    ppo = sequential(drawn(1, 4, 6, 6, 1), "critic.") | sequential(drawn(2, 4, 6, 6, 2), "actor.")
    path.write_bytes(saved(ppo))
    agent = cleanrl.load(path, Stub())
    np.testing.assert_array_equal(agent.predict(OBS4)[0], run(drawn(2, 4, 6, 6, 2), OBS4, np.tanh).argmax(-1))
    np.testing.assert_allclose(agent.critic(OBS4).detach(), run(drawn(1, 4, 6, 6, 1), OBS4, np.tanh), **CLOSE)
    box = sequential(drawn(1, 3, 6, 6, 1), "critic.") | sequential(drawn(2, 3, 6, 6, 1), "actor_mean.")
    path.write_bytes(saved({**box, "actor_logstd": torch.tensor([[-0.2]])}))
    agent = cleanrl.load(path, BOX)
    mean = run(drawn(2, 3, 6, 6, 1), OBS3, np.tanh)
    np.testing.assert_allclose(agent.predict(OBS3)[0], np.clip(mean, -2, 4), **CLOSE)


def cleanrl_parts(actor: dict[str, Any], critics: int) -> tuple[Any, ...]:
    bounds = {"action_scale": torch.tensor([3.0]), "action_bias": torch.tensor([1.0])}
    each = [named(drawn(5 + k, 4, 8, 8, 1), "fc1", "fc2", "fc3") for k in range(critics)]
    return ({**actor, **bounds}, *each)


@pytest.mark.parametrize(("critics", "cls"), [(2, TD3), (1, DDPG)])
def test_cleanrls_critics_read_actions_of_the_environment(tmp_path: Path, critics: int, cls: type) -> None:
    path = tmp_path / "td3.cleanrl_model"
    path.write_bytes(saved(cleanrl_parts(named(drawn(0, 3, 8, 8, 1), "fc1", "fc2", "fc_mu"), critics)))
    agent = cleanrl.load(path, BOX)
    assert type(agent) is cls
    expected = 1 + 3 * np.tanh(run(drawn(0, 3, 8, 8, 1), OBS3, relu))
    np.testing.assert_allclose(agent.predict(OBS3)[0], expected, rtol=1e-4, atol=1e-4)
    first = agent.critic_1 if critics == 2 else agent.critic
    value = run(drawn(5, 4, 8, 8, 1), np.concatenate([OBS3, 1 + 3 * ACTIONS], 1), relu)
    np.testing.assert_allclose(first(OBS3, ACTIONS).detach(), value, rtol=1e-4, atol=1e-4)
    wide = Stub(BOX.observation_space, spaces.Box(-2, 2, (1,)))
    with pytest.raises(ShapeError, match="was trained with other bounds of actions"):
        cleanrl.load(path, wide)


def test_cleanrls_sac_acts_alike_and_explores_nearly_alike(tmp_path: Path) -> None:
    path = tmp_path / "sac.cleanrl_model"
    (hidden, mean), spread = (drawn(0, 3, 8, 8), drawn(1, 8, 1)), [(0.01 * w, 0.01 * b) for w, b in drawn(2, 8, 1)]
    actor = named([*hidden, *mean, *spread], "fc1", "fc2", "fc_mean", "fc_logstd")
    path.write_bytes(saved(cleanrl_parts(actor, 2)))
    agent = cleanrl.load(path, BOX)
    np.testing.assert_allclose(
        agent.predict(OBS3)[0], 1 + 3 * np.tanh(run([*hidden, *mean], OBS3, relu)), rtol=1e-4, atol=1e-4
    )
    inside = np.tanh(run([*hidden, *spread], OBS3, relu))
    assert np.abs(inside).max() < 0.5
    log_std = -5 + 0.5 * 7 * (inside + 1)
    error = np.abs(agent.actor.output(OBS3)[:, 1:].detach().numpy() - log_std)
    # atanh(x) - x <= x³ / 3 / (1 - x²), times 3.5
    assert error.max() <= 3.5 * (np.abs(inside) ** 3 / 3 / (1 - inside**2)).max() + 1e-5


# --- what is refused -------------------------------------------------------------------------------------------------


LAYOUTS: dict[str, tuple[Any, str]] = {
    "another algorithm": (
        {"quantile_net.0.weight": torch.zeros(2, 4)},
        r"an unknown layout of Stable-Baselines3: no policy of DQN.*quantile_net\.0\.weight \[2, 4\]",
    ),
    "an extractor": (
        {**dqn_tensors(), "q_net.features_extractor.mlp.weight": torch.zeros(2, 2)},
        r"no counterpart here; tensors: q_net\.features_extractor\.mlp\.weight",
    ),
    "a missing bias": (
        {k: v for k, v in dqn_tensors().items() if k != "q_net.q_net.4.bias"}, r"q_net\.q_net\.4\.bias is missing"
    ),
    "other widths": ({**dqn_tensors(), "q_net.q_net.2.weight": torch.zeros(6, 9)}, "5 units before one of 9 inputs"),
    "one critic": (sac_tensors(critics=1), "SAC has two critics here"),
    "three critics": ({**td3_tensors(), "critic.qf2.0.weight": torch.zeros(2, 2)}, r"here; tensors: critic\.qf2"),
    "no numbers": ({**dqn_tensors(), "q_net.q_net.0.bias": torch.full((5,), torch.nan)}, "that are not finite"),
    "nested": ({"policy": dqn_tensors()}, "holds more than tensors: policy"),
    "a list": ([1, 2], "holds list; expected a state dict"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAYOUTS)
def test_other_layouts_name_their_tensors(tmp_path: Path, kind: str) -> None:
    tensors, match = LAYOUTS[kind]
    env = BOX if isinstance(tensors, dict) and any(name.startswith("actor") for name in tensors) else Stub()
    with pytest.raises(RunError, match=match):
        sb3.load(sb3_zip(tmp_path / "m.zip", tensors), env)


def test_images_memories_and_state_dependent_noise_are_named(tmp_path: Path) -> None:
    image = {**ppo_tensors(), "features_extractor.cnn.0.weight": torch.zeros(8, 3, 4, 4)}
    with pytest.raises(NotAvailableYetError, match=r"a policy of images.*features_extractor\.cnn\.0\.weight"):
        sb3.load(sb3_zip(tmp_path / "m.zip", image), Stub())
    memory = {**ppo_tensors(), "lstm_actor.weight_hh_l0": torch.zeros(8, 4)}
    with pytest.raises(NotAvailableYetError, match="a recurrent policy"):
        sb3.load(sb3_zip(tmp_path / "m.zip", memory), Stub())
    with pytest.raises(NotAvailableYetError, match="use_sde=True"):
        sb3.load(sb3_zip(tmp_path / "m.zip", ppo_tensors(3, 1, [0.0]), {"use_sde": True}), BOX)
    shown = Stub(spaces.Box(0, 255, (3, 8, 8), np.uint8))
    with pytest.raises(NotAvailableYetError, match="policies of images are not imported"):
        sb3.load(sb3_zip(tmp_path / "m.zip", dqn_tensors(0, 192, 4, 2)), shown)


def test_other_environments_are_named(tmp_path: Path) -> None:
    path = sb3_zip(tmp_path / "m.zip", dqn_tensors())
    with pytest.raises(ShapeError, match=r"m\.zip reads 4 numbers; the environment gives 3"):
        sb3.load(path, Stub(spaces.Box(-1, 1, (3,))))
    with pytest.raises(ShapeError, match=r"m\.zip has 2 outputs; Discrete\(3\) needs 3"):
        sb3.load(path, Stub(actions=spaces.Discrete(3)))
    with pytest.raises(AlgorithmError, match="a policy for Discrete actions"):
        sb3.load(path, BOX)
    with pytest.raises(RunError, match=r"holds no policy\.pth"):
        sb3.load(write(tmp_path / "dqn.cleanrl_model", saved(sequential(drawn(0, 4, 6, 2), "network."))), Stub())


def test_an_unknown_library_and_several_agents_are_named_and_environments_are_closed(tmp_path: Path) -> None:
    path = sb3_zip(tmp_path / "m.zip", dqn_tensors())
    with pytest.raises(ConfigError, match=r"unknown library of policies 'sb4'\. Did you mean 'sb3'"):
        load(path, Stub(), library="sb4")
    closed: list[str] = []

    class Team:
        possible_agents = ("a", "b")

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            return {}, {}

        def step(self, actions: Any) -> Any:
            return {}, {}, {}, {}, {}

        def close(self) -> None:
            closed.append("team")

    with pytest.raises(EnvError, match="have one agent"):
        load(path, Factory(Team, has_several_agents=True), library="sb3")
    assert closed == ["team"]


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# --- founders --------------------------------------------------------------------------------------------------------


def test_an_imported_agent_founds_a_run_that_trains_evolves_saves_and_exports(tmp_path: Path) -> None:
    path = sb3_zip(tmp_path / "m.zip", dqn_tensors(), {"learning_rate": 0.002})
    founder = sb3.load(path, "CartPole-v1", seed=1)
    assert founder.environment == {"id": "CartPole-v1", "kwargs": {}}
    settings: dict[str, Any] = {**TINY, "mutation.probabilities.arch_mut": 0.9, "mutation.probabilities.rl_hp_mut": 0.0}
    run = agilerl.train(
        "CartPole-v1", agents=[founder], population=3, steps=128, seed=1, out=tmp_path, verbose=False, **settings
    )
    assert run.path is not None
    loaded = agilerl.load(run.path)
    np.testing.assert_array_equal(loaded.best.predict(OBS4)[0], run.best.predict(OBS4)[0])
    assert {agent.lr for agent in loaded.population} == {0.002}
    again = agilerl.resume(run.path, steps=192, verbose=False)
    assert again.result["env_steps_member"] == 192


def test_agents_may_be_a_file_of_another_library(tmp_path: Path) -> None:
    path = sb3_zip(tmp_path / "m.zip", dqn_tensors(), {"learning_rate": 0.002})
    run = agilerl.train("CartPole-v1", agents=path, population=2, steps=64, out=tmp_path, verbose=False, **TINY)
    assert run.path is not None
    assert json.loads((run.path / "run.json").read_text())["parent"] == {"run": str(path), "members": [0]}
    assert {agent.lr for agent in run.population} == {0.002}
    for call in (lambda: agilerl.load(path), lambda: agilerl.train(None, agents=str(path))):
        with pytest.raises(RunError, match=r"m.zip is a file, .* fix: `agilerl train ENV_ID --from .*m.zip`"):
            call()


def test_the_command_begins_with_the_policy_of_a_file(tmp_path: Path) -> None:
    path = sb3_zip(tmp_path / "m.zip", dqn_tensors(), {"learning_rate": 0.002})
    sets = [f"training.{name.removeprefix('training.')}={'null' if v is None else v}" for name, v in TINY.items()]
    options = ["--steps", "64", "--population", "2", "--out", str(tmp_path), "-q", "--test-episodes", "0"]
    options += [word for text in sets for word in ("--set", text)]
    done = CliRunner().invoke(app, ["train", "CartPole-v1", "--from", str(path), *options])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "CartPole-v1" / "dqn-0001"
    facts = json.loads((folder / "run.json").read_text())
    assert facts["parent"] == {"run": str(path), "members": [0]}
    assert {agent.lr for agent in agilerl.load(folder).population} == {0.002}
    done = CliRunner().invoke(app, ["train", "CartPole-v1", "--from", str(path), *options, "--set", "lr=0.01"])
    assert {agent.lr for agent in agilerl.load(tmp_path / "CartPole-v1" / "dqn-0002").population} == {0.01}
    model = write(tmp_path / "ppo.cleanrl_model", saved(
        sequential(drawn(1, 4, 6, 6, 1), "critic.") | sequential(drawn(2, 4, 6, 6, 2), "actor.")))  # fmt: skip
    done = CliRunner().invoke(app, ["train", "CartPole-v1", "--from", str(model), "--dry-run"])
    assert done.exit_code == 0
    assert "algorithm: {name: PPO" in done.output
    for more, said in (
        (["--algo", "PPO"], "the agents are DQN, the new run trains PPO"),
        (["--seeds", "0-1"], "--from and --seeds do not go together"),
        (["--set", "latent_dim=8"], "network settings are not for agents"),
    ):
        done = CliRunner().invoke(app, ["train", "CartPole-v1", "--from", str(path), *more])
        assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


# --- the libraries themselves ----------------------------------------------------------------------------------------

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "DQN": ("DQN", "CartPole-v1", {}), "PPO": ("PPO", "CartPole-v1", {}), "A2C": ("A2C", "CartPole-v1", {}),
    "PPO of Box actions": ("PPO", "Pendulum-v1", {}), "SAC": ("SAC", "Pendulum-v1", {}),
    "TD3": ("TD3", "Pendulum-v1", {}), "DDPG": ("DDPG", "Pendulum-v1", {}),
    "PPO of numbers": ("PPO", "FrozenLake-v1", {}),
    "PPO of one layer": ("PPO", "CartPole-v1", {"policy_kwargs": {"net_arch": [32]}}),
    "PPO with ReLU": ("PPO", "CartPole-v1", {"policy_kwargs": {"activation_fn": torch.nn.ReLU}}),
    "DQN of no layer": ("DQN", "CartPole-v1", {"policy_kwargs": {"net_arch": []}}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_greedy_actions_are_those_of_stable_baselines3(case: str, tmp_path: Path) -> None:
    library: Any = pytest.importorskip("stable_baselines3")
    name, env, options = CASES[case]
    model = getattr(library, name)("MlpPolicy", env, seed=3, device="cpu", **options)
    model.save(tmp_path / "model.zip")
    agent = sb3.load(tmp_path / "model.zip", env)
    space = model.observation_space
    space.seed(0)
    rows = np.stack([space.sample() for _ in range(256)])
    rows = np.random.default_rng(0).normal(0, 1, rows.shape).astype(np.float32) if rows.dtype.kind == "f" else rows
    theirs, ours = model.predict(rows, deterministic=True)[0], agent.predict(rows, deterministic=True)[0]
    if isinstance(model.action_space, spaces.Discrete):
        np.testing.assert_array_equal(ours, theirs)
    else:  # sums of other order: the last bit of float32
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    assert type(agent) is (PPO if name == "A2C" else getattr(agilerl.algorithms, name))
