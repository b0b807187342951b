"""Greedy acting in C against torch, and equal bits of a row however members and lanes are cut among calls."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from agilerl.algorithms import (
    BC,
    CQL,
    CQN,
    DDPG,
    DQN,
    IPPO,
    IQL,
    MADDPG,
    MAPPO,
    MATD3,
    PPO,
    QRDQN,
    SAC,
    TD3,
    TD3BC,
    RainbowDQN,
)
from agilerl.algorithms.base.observation_statistics import ALONE
from agilerl.core.tree import map_leaves
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.rows.kernels import NATIVE, TORCH
from agilerl.engine.rows.native_forward import NativeForward
from agilerl.envs.protocol import AGENTS, JOINT, PRESENT
from agilerl.envs.vector import make_vect_envs
from agilerl.native import library as native
from agilerl.native.library import ACTIVATIONS, Library
from agilerl.rollouts.episodes import EvaluationResult
from agilerl.rollouts.evaluate import evaluate

FOUND = native.library()
BOTH = replace(NATIVE, whole=(torch.float32, torch.float64))
OBS, DISCRETE = gym.spaces.Box(-1, 1, (8,)), gym.spaces.Discrete(5)
BOX = gym.spaces.Box(np.float32([-2, 0, 1]), np.float32([3, 1, 4]))
WIDTHS = [(16, 20, 12), (33, 5, 70), (17, 24, 9), (1, 1, 1), (40, 31, 64)]  # latent, encoder, head
ROWS = [1, 2, 3, 5, 7, 8, 16, 17, 33, 63, 64, 65, 130]
POLICIES: dict[str, tuple[Any, gym.Space, dict[str, Any]]] = {
    "DQN": (DQN, DISCRETE, {}),
    "CQN": (CQN, DISCRETE, {}),
    "QRDQN": (QRDQN, DISCRETE, {"num_quantiles": 3}),
    "PPO Discrete": (PPO, DISCRETE, {}),
    "PPO MultiDiscrete": (PPO, gym.spaces.MultiDiscrete([3, 2]), {}),
    "PPO MultiBinary": (PPO, gym.spaces.MultiBinary(3), {}),
    "PPO Box": (PPO, BOX, {}),
    "PPO Box normalised": (PPO, BOX, {"normalize_observations": True}),
    "PPO Box squashed": (PPO, BOX, {"squash_output": True}),
    "SAC": (SAC, BOX, {}),
    "SAC Discrete": (SAC, DISCRETE, {}),
    "TD3": (TD3, BOX, {}),
    "DDPG": (DDPG, BOX, {}),
    "CQL": (CQL, BOX, {}),
    "IQL": (IQL, BOX, {}),
    "TD3BC": (TD3BC, BOX, {}),
    "BC": (BC, BOX, {}),
    "BC Discrete": (BC, DISCRETE, {}),
}
OF_POLICIES = pytest.mark.parametrize("name", POLICIES)
pytestmark = pytest.mark.skipif(FOUND is None, reason="no kernels were built for this machine")


def config_of(widths: tuple[int, int, int], activation: str = "ReLU", norm: bool = False) -> dict[str, Any]:
    latent, encoder, head = widths
    parts = {"activation": activation, "layer_norm": norm, "min_mlp_nodes": 1}
    return {
        "latent_dim": latent,
        "min_latent_dim": 1,
        "encoder_config": {"hidden_size": [encoder], **parts},
        "head_config": {"hidden_size": [head], **parts},
    }


def members(
    kind: Any, space: gym.Space, dtype: torch.dtype = torch.float32, *, obs: gym.Space = OBS, activation: str = "ReLU",
    norm: bool = False, widths: Any = WIDTHS, **more: Any,
) -> list[Any]:  # fmt: skip
    """Agents of these widths."""
    agents = []
    for index, each in enumerate(widths):
        config = config_of(each, activation, norm)
        agent = kind(obs, space, index=index, seed=index, net_config=config, **more)
        for network in agent.registry.all_registered():
            getattr(agent, network).to(dtype)
        agent.reinit_optimizers()
        agents.append(agent)
    return agents


def observations(count: int, rows: int, dtype: torch.dtype = torch.float32, size: int = 8) -> Tensor:
    draws = torch.Generator().manual_seed(3)
    return (3 * torch.randn(count, rows, size, generator=draws, dtype=torch.float64)).to(dtype)


def in_c(learner: Learner, kernels: Library | None = None) -> NativeForward:
    """The policies of the only group of a learner."""
    (group,) = learner.groups
    run = group.engine.by_row("actor")
    assert isinstance(run, NativeForward)
    if kernels is not None:
        run._kernel.library = kernels
    return run


def adopted(agents: list[Any], kernels: Any = NATIVE) -> Learner:
    return Learner(agents, choose(agents, "fused"), kernels)


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", [False, True])
def test_outputs_are_those_of_the_modules(activation: str, norm: bool) -> None:
    agents = members(DQN, DISCRETE, torch.float64, activation=activation, norm=norm)
    x = observations(5, 70, torch.float64)
    with torch.no_grad():
        expected = torch.stack([agent.actor(rows) for agent, rows in zip(agents, x, strict=True)])
    outputs = in_c(Learner(agents, kernels=BOTH))(x)
    assert outputs.shape == (5, 70, 5)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", [False, True])
def test_float32_is_no_worse_than_torch(activation: str, norm: bool) -> None:
    agents, x = members(DQN, DISCRETE, activation=activation, norm=norm), observations(5, 70)
    with torch.no_grad():
        in_torch = torch.stack([agent.actor(rows) for agent, rows in zip(agents, x, strict=True)])
        exact = [deepcopy(agent.actor).double()(rows.double()) for agent, rows in zip(agents, x, strict=True)]
    errors = [(y.double() - torch.stack(exact)).square().mean().sqrt() for y in (in_c(adopted(agents))(x), in_torch)]
    assert 0 < errors[0] < 1.2 * errors[1] + 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_row_has_equal_bits_in_every_call(activation: str, norm: bool, dtype: torch.dtype) -> None:
    assert FOUND is not None
    agents = members(DQN, DISCRETE, dtype, activation=activation, norm=norm)
    alone = members(DQN, DISCRETE, dtype, activation=activation, norm=norm)
    x, learner = observations(5, 130, dtype), Learner(agents, kernels=BOTH)
    whole = in_c(learner)(x)
    for width in [w for w in (512, 256, 128) if w <= FOUND.vector and (w == 128) == (FOUND.vector == 128)]:
        run = in_c(learner, Library(FOUND.path, width))
        for rows in ROWS:
            for start in {0, 130 - rows}:
                assert torch.equal(run(x[:, start : start + rows]), whole[:, start : start + rows])
    for k, agent in enumerate(alone):
        run = in_c(Learner([agent], kernels=BOTH))
        for rows in ROWS:
            assert torch.equal(run(x[k : k + 1, :rows]), whole[k : k + 1, :rows])


def test_inputs_that_are_not_contiguous_are_read_in_order() -> None:
    run, x = in_c(adopted(members(DQN, DISCRETE))), observations(5, 9)
    assert torch.equal(run(x.mT.contiguous().mT), run(x))
    assert run(x[:, :0]).shape == (5, 0, 5)


def test_inputs_of_another_shape_are_refused() -> None:
    run, x = in_c(adopted(members(DQN, DISCRETE))), observations(5, 9)
    for wrong in (x[:4], x[..., :7], x[0], x.double()):
        with pytest.raises(ValueError, match=r"expected \[5, R, 8\] torch\.float32"):
            run(wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_row_that_is_not_finite_spoils_no_other(activation: str, dtype: torch.dtype) -> None:
    learner = Learner(members(DQN, DISCRETE, dtype, activation=activation, norm=True), kernels=BOTH)
    run, x = in_c(learner), observations(5, 20, dtype)
    spoilt = x.clone()
    spoilt[:, 3], spoilt[:, 8, 0], spoilt[:, 12, 7] = torch.nan, torch.inf, -torch.inf
    clean = [row for row in range(20) if row not in (3, 8, 12)]
    assert torch.equal(run(spoilt)[:, clean], run(x)[:, clean])
    assert run(spoilt)[:, 3].isnan().all()


# --- acting -----------------------------------------------------------------------------------------------------------


def assert_cut_freely(make: Any, obs: Any, mask: np.ndarray | None = None, rows: int = 33) -> None:
    """Greedy actions of all members and lanes at once are those of any part of them, to the bit."""
    learner = adopted(make())
    assert learner.acts_by_row
    whole, agents = learner.act_greedy(obs, mask), make()
    for chosen in ([0], [3], [1, 2], [0, 2, 4]):
        part = adopted([agents[k] for k in chosen])
        for lanes in (slice(0, 1), slice(0, 16), slice(16, rows), slice(5, 8)):
            legal = None if mask is None else mask[chosen, lanes]
            cut = lambda x, chosen=chosen, lanes=lanes: x[chosen][:, lanes]  # noqa: E731
            actions = part.act_greedy(map_leaves(cut, obs), legal)
            np.testing.assert_array_equal(actions, whole[chosen][:, lanes], strict=True)
        part.release()


@OF_POLICIES
def test_greedy_actions_do_not_depend_on_the_cut(name: str) -> None:
    kind, space, more = POLICIES[name]

    def make() -> list[Any]:
        agents = members(kind, space, **more)
        if more.get("normalize_observations"):
            for agent in agents:
                statistics = agent.observation_statistics.running()
                statistics.add([{ALONE: 1.7 * observations(1, 50)[0].numpy() + 0.3}])
                agent.take_statistics(statistics)
        return agents

    obs = observations(5, 33).numpy()
    assert_cut_freely(make, obs)
    in_torch = adopted(make(), TORCH)
    assert not in_torch.acts_by_row
    actions = [learner.act_greedy(obs) for learner in (adopted(make()), in_torch)]
    np.testing.assert_allclose(actions[0], actions[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [DQN, PPO, SAC])
def test_illegal_actions_are_not_taken_whatever_the_cut(kind: Any) -> None:
    draws = np.random.default_rng(0)
    mask = (draws.random((5, 33, 5)) < 0.4) | (np.arange(5) == draws.integers(5, size=(5, 33, 1)))
    obs = observations(5, 33).numpy()
    assert_cut_freely(lambda: members(kind, DISCRETE), obs, mask)
    actions = adopted(members(kind, DISCRETE)).act_greedy(obs, mask)
    assert np.take_along_axis(mask, actions[..., None], -1).all()


def test_discrete_observations_are_encoded_as_before() -> None:
    obs = np.random.default_rng(0).integers(0, 6, (5, 33))
    make = lambda: members(DQN, DISCRETE, obs=gym.spaces.Discrete(6))  # noqa: E731
    assert_cut_freely(make, obs)
    np.testing.assert_array_equal(adopted(make()).act_greedy(obs), adopted(make(), TORCH).act_greedy(obs))


def test_members_of_several_groups_act_in_population_order() -> None:
    def make() -> list[Any]:
        return [
            agent
            for activation in ("ReLU", "Tanh")
            for agent in members(TD3, BOX, activation=activation, widths=WIDTHS[:2])
        ]

    obs, learner = observations(4, 6).numpy(), adopted(make())
    assert len(learner.groups) == 4
    assert learner.acts_by_row
    whole = learner.act_greedy(obs)
    for k, agent in enumerate(make()):
        np.testing.assert_array_equal(adopted([agent]).act_greedy(obs[k : k + 1]), whole[k : k + 1], strict=True)


def team_members(kind: Any, *, box: bool, **more: Any) -> list[Any]:
    """Five teams of a group of two agents and one of one."""
    spaces = [gym.spaces.Box(-1, 1, (size,)) for size in (8, 8, 4)]
    actions: list[gym.Space] = [BOX] * 3 if box else [DISCRETE, DISCRETE, gym.spaces.MultiDiscrete([3, 2])]
    ids, teams = ["a_0", "a_1", "b_0"], []
    for index, widths in enumerate(WIDTHS):
        config = config_of((WIDTHS[0][0], *widths[1:]))  # critics of one group read as many features
        for part in ("encoder_config", "head_config"):
            config[part].pop("layer_norm")
        teams.append(kind(spaces, actions, agent_ids=ids, index=index, seed=index, net_config=config, **more))
    return teams


@pytest.mark.parametrize("box", [False, True], ids=["choices", "Box"])
@pytest.mark.parametrize("kind", [MADDPG, MATD3, IPPO, MAPPO])
def test_greedy_actions_of_teams_do_not_depend_on_the_cut(kind: Any, box: bool) -> None:
    seen = dict(zip(("a_0", "a_1", "b_0"), observations(5, 33, size=20).split([8, 8, 4], -1), strict=True))
    obs = {AGENTS: {name: rows.numpy() for name, rows in seen.items()}, PRESENT: np.ones((5, 33, 3), bool)}
    obs[JOINT] = np.concatenate(list(obs[AGENTS].values()), -1)
    assert_cut_freely(lambda: team_members(kind, box=box), obs)
    actions = [adopted(team_members(kind, box=box), kernels).act_greedy(obs) for kernels in (NATIVE, TORCH)]
    np.testing.assert_allclose(actions[0], actions[1], rtol=1e-4, atol=1e-4)


def test_greedy_actions_from_images_do_not_depend_on_the_cut() -> None:
    space = gym.spaces.Box(0, 255, (3, 10, 9), np.uint8)
    config = {"encoder_config": {"channel_size": [5, 7], "kernel_size": [3, 2], "stride_size": [2, 1]}}
    obs = np.random.default_rng(0).integers(0, 256, (5, 33, *space.shape), np.uint8)
    make = lambda: [DQN(space, DISCRETE, index=i, seed=i, net_config=config) for i in range(5)]  # noqa: E731
    assert_cut_freely(make, obs)
    actions = [adopted(make(), kernels).act_greedy(obs) for kernels in (NATIVE, TORCH)]
    np.testing.assert_array_equal(*actions)


def test_what_c_does_not_run_acts_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    image = gym.spaces.Box(0, 255, (1, 40, 40), np.uint8)
    both = gym.spaces.Dict({"at": OBS, "card": gym.spaces.Discrete(3)})
    in_torch = {
        "float64": members(DQN, DISCRETE, torch.float64),
        "noisy": [RainbowDQN(OBS, DISCRETE, num_atoms=5)],
        "one value for each action": [RainbowDQN(OBS, DISCRETE, noisy=False, dueling=False, distributional=False)],
        "two heads": [PPO(OBS, DISCRETE, share_encoders=True)],
        "recurrent": [PPO(OBS, DISCRETE, recurrent=True)],
        "large image": [DQN(image, DISCRETE)],
        "Dict": [DQN(both, DISCRETE)],
        "relaxed": [BC(OBS, BOX, net_config={"head_config": {"output_activation": "Softmax"}})],
    }
    assert [name for name, agents in in_torch.items() if Learner(agents, choose(agents), NATIVE).acts_by_row] == []
    assert not Learner(members(DQN, DISCRETE), choose(members(DQN, DISCRETE), "sequential"), NATIVE).acts_by_row
    assert Learner(members(DQN, DISCRETE, torch.float64), kernels=BOTH).acts_by_row
    monkeypatch.setenv("AGILERL_NATIVE", "0")
    assert not adopted(members(DQN, DISCRETE)).acts_by_row


def test_exploration_and_training_keep_their_bits() -> None:
    agents, x = members(PPO, DISCRETE, widths=WIDTHS[:1] * 5), observations(5, 33).numpy()
    learners = [adopted(members(PPO, DISCRETE, widths=WIDTHS[:1] * 5), kernels) for kernels in (NATIVE, TORCH)]
    assert torch.equal(*(learner.outputs_of(0, x) for learner in learners))
    draws = agents[0].draw_exploration(np.random.default_rng(0), (5, 33))
    np.testing.assert_array_equal(*(learner.explore(x, draws, 0.0) for learner in learners))


def test_actions_follow_the_weights() -> None:
    learner, x = adopted(members(DQN, DISCRETE)), observations(5, 33).numpy()
    assert len(np.unique(learner.act_greedy(x))) > 1
    for agent in learner.agents:
        last = agent.actor.head_net.model.get_submodule("linear_output")
        with torch.no_grad():
            last.get_parameter("weight").zero_()
            last.get_parameter("bias").copy_(torch.arange(5.0) == 2)
    assert (learner.act_greedy(x) == 2).all()


def test_tanh_and_the_choice_among_equals_depend_on_neither_size_nor_position() -> None:
    x = 3 * torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([row.unsqueeze(0).clone().tanh() for row in x])
    single = torch.stack([number.clone().reshape(1).tanh() for number in x.flatten()]).view_as(x)
    assert torch.equal(alone, single)
    raw = torch.cat((x, x), -1)
    for rows in range(1, 300):
        for start in {0, 1, 300 - rows}:
            part = slice(start, start + rows)
            assert torch.equal(x[part].clone().tanh(), alone[part])
            assert torch.equal(raw[part].clone().chunk(2, -1)[0].tanh(), alone[part])
    for rows in range(1, 70):
        for choices in (2, 5, 17, 40):
            values = torch.zeros(2, rows, choices)
            values[..., -1] = -1
            assert (values.max(-1).indices == 0).all()
            assert (values.argmax(-1) == 0).all()


# --- evaluation -------------------------------------------------------------------------------------------------------

PLAYED: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "DQN": ("CartPole-v1", DQN, {}),
    "CQN": ("CartPole-v1", CQN, {}),
    "PPO Discrete": ("CartPole-v1", PPO, {}),
    "PPO Box": ("Pendulum-v1", PPO, {}),
    "SAC": ("Pendulum-v1", SAC, {}),
    "TD3": ("Pendulum-v1", TD3, {}),
    "DDPG": ("Pendulum-v1", DDPG, {}),
}


def played(agents: list[Any], env: Any, episodes: np.ndarray) -> EvaluationResult:
    learner = adopted(agents)
    assert learner.acts_by_row
    lanes = env.replicate(len(agents) * len(episodes), reset_ended=False)
    try:
        return evaluate(learner, lanes, len(agents), len(episodes), episodes, 60)
    finally:
        lanes.close()
        learner.release()


@pytest.mark.parametrize("name", PLAYED)
def test_an_evaluation_has_equal_bits_however_it_is_cut(name: str) -> None:
    env_name, kind, more = PLAYED[name]
    env = make_vect_envs(env_name, num_envs=1)
    obs, space = env.single_observation_space, env.single_action_space
    make = lambda: members(kind, space, obs=obs, widths=[*WIDTHS[:3], WIDTHS[4]], **more)  # noqa: E731
    episodes = np.arange(100, 116)
    whole = played(make(), env, episodes)
    assert len(np.unique(whole.returns)) > 4
    halves = [played(make(), env, part) for part in (episodes[:8], episodes[8:])]
    np.testing.assert_array_equal(np.concatenate([half.returns for half in halves], 1), whole.returns, strict=True)
    np.testing.assert_array_equal(np.concatenate([half.lengths for half in halves], 1), whole.lengths, strict=True)
    for k in range(4):
        one = played([make()[k]], env, episodes)
        np.testing.assert_array_equal(one.returns, whole.returns[k : k + 1], strict=True)
    env.close()
