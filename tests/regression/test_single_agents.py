"""One agent in a user's own hands: its actions outside of training, its own modules, its seed and its name."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agilerl.algorithms import (
    DDPG,
    DQN,
    PPO,
    SAC,
    TD3,
    RainbowDQN,
    RLAlgorithm,
    available,
    find_algorithm,
    is_team,
    register,
)
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.config import Manifest
from agilerl.errors import AlgorithmError, ShapeError
from agilerl.modules.base import DummyEvolvable, EvolvableModule
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.training.manifest.tasks import task_of
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs
from agilerl.views.export import greedy_actions
from agilerl.wrappers.agent import RSNorm
from agilerl.wrappers.make_evolvable import MakeEvolvable

NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
OBS = gym.spaces.Box(-1, 1, (4,), np.float32)
NARROW = gym.spaces.Box(np.array([-0.1, 0.2]), np.array([0.1, 0.6]), dtype=np.float32)
CONTINUOUS = [DDPG, TD3, SAC]
SEEN = np.random.default_rng(0).uniform(-1, 1, (50, 4)).astype(np.float32)


def raw_output(agent: Any) -> Tensor:
    with torch.no_grad():
        return agent.policy_output(SEEN)


# --- actions outside of training


@pytest.mark.parametrize("cls", CONTINUOUS)
def test_actions_outside_of_training_are_those_of_the_environment(cls: Any) -> None:
    agent = cls(OBS, NARROW, net_config=NET, seed=1)
    raw = agent.get_action(SEEN)
    assert agent.acts_raw
    assert np.abs(raw).max() > 0.1, "while training they are in the range of the policy's output"
    agent.set_training_mode(False)
    assert not agent.acts_raw
    quiet = agent.get_action(SEEN)
    assert quiet.shape == (50, 2)
    assert all(NARROW.contains(action) for action in quiet)
    outputs = agent.greedy(raw_output(agent))
    np.testing.assert_allclose(quiet, [0, 0.4] + outputs * [0.1, 0.2], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(agent._greedy(SEEN), quiet)
    np.testing.assert_array_equal(greedy_actions(agent, SEEN), quiet)
    np.testing.assert_array_equal(RSNorm(agent)._greedy(SEEN).shape, quiet.shape)


@pytest.mark.parametrize("cls", CONTINUOUS)
def test_the_second_positional_argument_is_training(cls: Any) -> None:
    agent = cls(OBS, NARROW, net_config=NET, seed=1)
    quiet = agent.get_action(SEEN, False)
    np.testing.assert_array_equal(quiet, agent.get_action(SEEN, training=False))
    np.testing.assert_array_equal(quiet, agent.environment_action(agent.greedy(raw_output(agent))))
    agent.set_training_mode(False)
    twin = agent.clone()
    explored = agent.get_action(SEEN, True)
    twin.set_training_mode(True)
    np.testing.assert_array_equal(explored, twin.get_action(SEEN))


@pytest.mark.parametrize("cls", CONTINUOUS)
def test_a_loop_that_begins_with_an_agent_in_evaluation_mode_stores_raw_actions(cls: Any) -> None:
    class Seen(gym.Env[np.ndarray, np.ndarray]):
        observation_space, action_space = OBS, NARROW

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            super().reset(seed=seed)
            return SEEN[0], {}

        def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            assert NARROW.contains(np.asarray(action, np.float32))
            return np.append(action, [0, 0]).astype(np.float32), 0.0, False, False, {}

    env, memory = make_vect_envs(make_env=Seen, num_envs=2), ReplayBuffer(100)
    noise = {} if cls is SAC else {"O_U_noise": False, "expl_noise": 0.5}
    agent = RSNorm(cls(OBS, NARROW, net_config=NET, batch_size=100, seed=1, **noise))
    agent.set_training_mode(False)
    train_off_policy(env, "Seen", pop=[agent], memory=memory, max_steps=40, evo_steps=40, eval_steps=2, verbose=False,
                     seed=1)  # fmt: skip
    rows = memory.gather(np.arange(40))
    assert rows["action"].abs().max() > 0.6, "the bounds of the space would show"
    taken = agent.environment_action(rows["action"].numpy())
    np.testing.assert_allclose(rows["next_obs"][:, :2].numpy(), taken, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("squash", [False, True])
def test_ppo_clips_or_scales_outside_of_training_alone(squash: bool) -> None:
    agent = PPO(OBS, NARROW, net_config={**NET, "squash_output": squash}, seed=1)
    raw, log_prob = agent.get_action(SEEN)[:2]
    assert np.abs(raw).max() > 0.6
    distribution = agent.distribution
    expected = distribution.log_prob(raw_output(agent), torch.from_numpy(raw)).numpy()
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-4)
    agent.set_training_mode(False)
    quiet = agent.get_action(SEEN)[0]
    assert all(NARROW.contains(action) for action in quiet)
    mode = distribution.mode(raw_output(agent)).numpy()
    placed = [0, 0.4] + mode * [0.1, 0.2] if squash else np.clip(mode, NARROW.low, NARROW.high)
    np.testing.assert_allclose(quiet, placed, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(agent._greedy(SEEN), quiet)


def test_rainbow_takes_a_mask_and_training_by_position() -> None:
    agent = RainbowDQN(OBS, gym.spaces.Discrete(4), net_config=NET, v_min=-1, v_max=1, seed=1)
    mask = np.zeros((50, 4), bool)
    mask[:, 2] = True
    assert agent.get_action(SEEN, mask).tolist() == [2] * 50
    assert agent.get_action(SEEN, mask, False).tolist() == [2] * 50
    np.testing.assert_array_equal(agent.get_action(SEEN, None, False), agent._greedy(SEEN))
    with pytest.raises(ShapeError, match=r"action_mask is 0.1; expected for Discrete\(4\): 4 entries, one per action"):
        agent.get_action(SEEN, 0.1)


# --- modules of the user's own


class Own(EvolvableModule):
    """Refuses anything but tensors of its own kind."""

    def __init__(self, inputs: int, outputs: int, device: Any = "cpu", random_seed: int | None = None) -> None:
        super().__init__(device, random_seed)
        self.inputs, self.outputs = inputs, outputs
        self.linear = nn.Linear(inputs, outputs).to(device)

    def forward(self, *given: Tensor) -> Tensor:
        assert all(isinstance(x, Tensor) and x.dtype == torch.float32 for x in given)
        return torch.tanh(self.linear(torch.cat(given, -1)))


def own(kind: str, inputs: int, outputs: int) -> EvolvableModule:
    if kind == "Own":
        return Own(inputs, outputs)
    module = nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh())
    return DummyEvolvable(module) if kind == "DummyEvolvable" else MakeEvolvable(module)


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.linear(torch.cat((obs, action), -1))


KINDS = ["Own", "DummyEvolvable", "MakeEvolvable"]
FORMS = [SEEN, SEEN.astype(np.float64), torch.from_numpy(SEEN), SEEN[0], SEEN.tolist()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("obs", FORMS, ids=["float32", "float64", "torch", "one", "lists"])
def test_modules_of_the_users_own_are_given_tensors(kind: str, obs: Any) -> None:
    torch.manual_seed(0)
    rows = 1 if np.ndim(obs) == 1 else 50
    dqn = DQN(OBS, gym.spaces.Discrete(2), actor_network=own(kind, 4, 2), seed=1)
    assert dqn.get_action(obs).shape == dqn._greedy(obs).shape == (rows,)
    critics = [DummyEvolvable(Joined()) for _ in range(2)]
    for agent in (
        TD3(OBS, NARROW, actor_network=own(kind, 4, 2), critic_networks=critics, seed=1),
        DDPG(OBS, NARROW, actor_network=own(kind, 4, 2), critic_network=critics[0], seed=1),
        SAC(OBS, NARROW, actor_network=own(kind, 4, 4), critic_networks=critics, seed=1),
    ):
        assert agent.get_action(obs).shape == agent._greedy(obs).shape == (rows, 2)
    ppo = PPO(OBS, NARROW, actor_network=own(kind, 4, 4), critic_network=own(kind, 4, 1), seed=1)
    action, log_prob, entropy, value = ppo.get_action(obs)
    assert action.shape == ppo._greedy(obs).shape == (rows, 2)
    assert log_prob.shape == entropy.shape == value.shape == (rows,)


class Wide(gym.Env[np.ndarray, Any]):
    """Observations in float64, as many environments give them."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float64)
    action_space: gym.Space[Any] = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 4), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.np_random.uniform(-1, 1, 4), 1.0, bool(self.np_random.random() < 0.2), False, {}


class WideBox(Wide):
    action_space = NARROW


@pytest.mark.parametrize("kind", KINDS)
def test_agents_with_modules_of_the_users_own_train_and_are_evaluated(kind: str) -> None:
    torch.manual_seed(0)
    options = {"max_steps": 64, "evo_steps": 32, "eval_steps": 8, "verbose": False, "seed": 1}
    for make, env in (
        (lambda i: DQN(Wide.observation_space, Wide.action_space, i, batch_size=8,
                       actor_network=own(kind, 4, 2)), Wide),
        (lambda i: DDPG(Wide.observation_space, NARROW, index=i, actor_network=own(kind, 4, 2), batch_size=8,
                        critic_network=DummyEvolvable(Joined())), WideBox),
    ):  # fmt: skip
        lanes = make_vect_envs(make_env=env, num_envs=2)
        pop, fitness = train_off_policy(lanes, "Wide", pop=[make(0), make(1)], memory=ReplayBuffer(100), **options)
        assert np.isfinite(np.ravel(fitness)).all()
        assert pop[0].learn_counter > 0
    lanes = make_vect_envs(make_env=Wide, num_envs=2)
    ppo = [PPO(Wide.observation_space, Wide.action_space, i, actor_network=own(kind, 4, 2), batch_size=8, learn_step=16,
               critic_network=own(kind, 4, 1)) for i in range(2)]  # fmt: skip
    train_on_policy(lanes, "Wide", pop=ppo, **options)
    collect_rollouts(ppo[0], lanes, 4)
    assert np.isfinite(ppo[0].learn())


# --- seeds


@pytest.mark.parametrize(
    "algo",
    [
        name
        for name in available()
        if (name.isupper() or name == "RainbowDQN") and not is_team(name) and not find_algorithm(name).reads_texts
    ],
)
def test_agents_made_one_by_one_without_a_seed_differ(algo: str) -> None:
    space: gym.Space[Any] = gym.spaces.Discrete(3) if algo in ("CQN", "DQN", "PQN", "QRDQN", "RainbowDQN") else NARROW
    more = {"v_min": -1.0, "v_max": 1.0} if algo == "RainbowDQN" else {}

    def made(index: int, **options: Any) -> RLAlgorithm:
        return find_algorithm(algo)(OBS, space, index=index, net_config=NET, **more, **options)

    def weights(agent: RLAlgorithm) -> Tensor:
        return torch.cat([p.detach().flatten() for p in agent.policy_module().parameters()])

    torch.manual_seed(7)
    three, again = ([made(i) for i in range(3)] for _ in range(2))
    for one, other in zip(three, again, strict=True):
        assert torch.equal(weights(one), weights(other)), "they follow torch's seed"
    assert not any(torch.equal(weights(three[i]), weights(three[j])) for i in range(3) for j in range(i))
    drawn = [agent._exploration.random() for agent in three]
    assert len({agent.seed for agent in three}) == len(set(drawn)) == 3
    assert three[0].seed == 7
    assert torch.equal(weights(three[0]), weights(made(0, seed=7))), "index 0 has torch's seed itself"
    assert [made(i, seed=5).seed for i in range(3)] == [5, 5, 5]
    assert torch.equal(weights(made(1, seed=5)), weights(made(2, seed=5)))


# --- algorithms of the user's own


class Mine(DQN):
    """A DQN under another name."""


def test_a_registered_algorithm_is_found_by_its_name_and_makes_a_population() -> None:
    with pytest.raises(AlgorithmError, match="unknown algorithm 'mine'"):
        find_algorithm("mine")
    assert register(Mine) is Mine
    assert find_algorithm("mine") is Mine
    manifest = Manifest.model_validate(
        {"algorithm": {"name": "mine", "lr": 0.5}, "environment": {"name": "CartPole-v1"}}
    )
    env = make_vect_envs("CartPole-v1", num_envs=1)
    population = task_of(manifest).population(env, seed=1, device="cpu")
    assert {type(agent) for agent in population} == {Mine}
    assert {agent.lr for agent in population} == {0.5}


@pytest.mark.parametrize("cls", [Mine, type("MyTD3", (TD3,), {}), type("MySAC", (SAC,), {})])
def test_a_subclass_on_wrong_actions_says_what_it_needs(cls: Any) -> None:
    with pytest.raises(AlgorithmError, match=r"needs (Box|Discrete)( or (Multi)?Discrete)? actions; got MultiBinary"):
        cls(OBS, gym.spaces.MultiBinary(3), net_config=NET)


@pytest.mark.parametrize(
    ("cls", "message"), [(type("TD3", (TD3,), {}), "a name of the package's own"), (int, "RLAlgorithm")]
)
def test_what_cannot_be_registered_is_refused(cls: Any, message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        register(cls)
