"""MultiDiscrete actions, and Discrete ones that count from elsewhere, for the algorithms that value every choice."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms.dqn import DQN
from agilerl.algorithms.dqn_rainbow import RainbowDQN
from agilerl.components.replay_buffer import PrioritizedReplayBuffer, ReplayBuffer
from agilerl.errors import AlgorithmError, ShapeError
from agilerl.networks.distributions import JointActions
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population, make_vect_envs

NET = {"encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}, "latent_dim": 16}
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
PAIR = gym.spaces.MultiDiscrete([3, 2], start=[1, 0])


class Locks(gym.Env[np.ndarray, Any]):
    """One step: +1 where the first dial shows 1 + the index of the observation's sign and the second the opposite.

    The first dial never reaches 3 where masks are given.
    """

    observation_space: ClassVar = BOX
    masks = False

    def __init__(self, action_space: gym.Space[Any] = PAIR) -> None:
        self.action_space = action_space

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.array([1, 1, 0, 1, 1], np.int8)} if self.masks else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = np.sign(self.np_random.normal(size=2)).astype(np.float32)
        return self.state, self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(np.asarray(action, np.int64)), action
        up = self.state[0] > 0
        if isinstance(self.action_space, gym.spaces.Discrete):
            reward = float(int(action) == (6 if up else 5))
        else:
            assert not (self.masks and action[0] == 3)
            reward = float(action[0] == (2 if up else 1) and action[1] == (0 if up else 1))
        return self.state, reward, True, False, self._info()


class Masked(Locks):
    masks = True


def test_combinations_are_numbered_with_the_last_component_fastest() -> None:
    choices = JointActions.of(PAIR, "test")
    actions = np.array([[1, 0], [1, 1], [2, 0], [2, 1], [3, 0], [3, 1]])
    assert choices.count == 6
    assert choices.encode(actions).tolist() == list(range(6))
    assert (choices.decode(np.arange(6)) == actions).all()
    assert choices.legal(np.array([1, 0, 1, 0, 1])).astype(int).tolist() == [0, 1, 0, 0, 0, 1]
    one = JointActions.of(gym.spaces.Discrete(3, start=5), "test")
    assert one.encode(np.array([5, 7])).tolist() == [0, 2]
    assert one.decode(np.array([[0, 2]])).tolist() == [[5, 7]]
    assert one.legal(np.array([1, 0, 1])).tolist() == [1, 0, 1]


def test_combinations_of_a_grid_of_dials_keep_its_shape() -> None:
    space = gym.spaces.MultiDiscrete([[2, 3], [2, 2]], seed=4)
    choices = JointActions.of(space, "test")
    drawn = np.stack([space.sample() for _ in range(20)])
    assert choices.decode(choices.encode(drawn)).shape == (20, 2, 2)
    assert (choices.decode(choices.encode(drawn)) == drawn).all()


def test_other_spaces_and_too_many_combinations_are_refused_with_a_way_out() -> None:
    with pytest.raises(AlgorithmError, match="DQN needs Discrete or MultiDiscrete actions; got Box"):
        DQN(BOX, gym.spaces.Box(-1, 1, (2,)))
    with pytest.raises(AlgorithmError, match=r"DQN has one value per combination.*65536 combinations.*fix: PPO"):
        DQN(BOX, gym.spaces.MultiDiscrete([2] * 16))


@pytest.mark.parametrize(
    ("algo", "env_class", "learner"),
    [
        ("DQN", Masked, "fused"),
        pytest.param("DQN", Locks, "sequential", marks=pytest.mark.slow),
        pytest.param("RainbowDQN", Masked, "fused", marks=pytest.mark.slow),
    ],
)
def test_both_dials_are_learned(algo: str, env_class: type[Locks], learner: str) -> None:
    env = make_vect_envs(make_env=env_class, num_envs=4)
    hyperparameters = {"BATCH_SIZE": 32, "LEARN_STEP": 2, "LR": 5e-3, "GAMMA": 0.0, "V_MIN": -0.5, "V_MAX": 1.5}
    hyperparameters |= {"NUM_ATOMS": 11} if algo == "RainbowDQN" else {"DOUBLE": True}
    pop = create_population(
        algo, NET, {k: v for k, v in hyperparameters.items() if algo != "DQN" or not k.startswith("V_")}, BOX, PAIR,
        population_size=2, seed=5,
    )  # fmt: skip
    memory = PrioritizedReplayBuffer(2_000) if algo == "RainbowDQN" else ReplayBuffer(2_000)
    pop, fitness = train_off_policy(
        env, "Locks", pop=pop, memory=memory, max_steps=800, evo_steps=400, eval_loop=4, learning_delay=64,
        eps_end=0.2, per=algo == "RainbowDQN", verbose=False, seed=2, learner=learner,
    )  # fmt: skip
    assert fitness[-1] == [1.0, 1.0]
    action = pop[0].get_action(np.array([[1, 1], [-1, 1]], np.float32), training=False) if algo != "DQN" else (
        pop[0].get_action(np.array([[1, 1], [-1, 1]], np.float32)))  # fmt: skip
    assert action.tolist() == [[2, 0], [1, 1]]
    assert memory.gather(np.arange(8))["action"].max() < 6
    env.close()


def test_an_agent_alone_learns_from_actions_of_the_space() -> None:
    agent = DQN(BOX, PAIR, net_config=NET, lr=5e-3, gamma=0.0, seed=1)
    rng = np.random.default_rng(0)
    obs = np.sign(rng.normal(size=(256, 2))).astype(np.float32)
    action = np.stack([agent.get_action(row, epsilon=1.0)[0] for row in obs])
    up = obs[:, 0] > 0
    reward = ((action[:, 0] == np.where(up, 2, 1)) & (action[:, 1] == np.where(up, 0, 1))).astype(np.float32)
    fields = {"obs": obs, "action": action, "reward": reward, "next_obs": obs, "done": np.ones(256, np.float32)}
    batch = {name: torch.as_tensor(value) for name, value in fields.items()}
    losses = [agent.learn(batch) for _ in range(200)]
    assert losses[-1] < 0.01 < losses[0]
    mask = np.array([0, 0, 1, 1, 1])
    assert agent.get_action(obs[:4], action_mask=mask)[:, 0].tolist() == [3] * 4
    with pytest.raises(ShapeError, match=r"^DQN\.learn got actions outside MultiDiscrete.* fix: what get_action"):
        agent.learn({**batch, "action": batch["action"] + 3})
    with pytest.raises(ShapeError, match="expected \\(256, 2\\)"):
        agent.learn({**batch, "action": batch["action"][:, 0]})


@pytest.mark.parametrize("cls", [DQN, RainbowDQN])
def test_discrete_actions_may_count_from_elsewhere(cls: type[Any]) -> None:
    space = gym.spaces.Discrete(3, start=5)
    env = make_vect_envs(make_env=lambda: Locks(space), num_envs=4)
    agents = [cls(BOX, space, net_config=NET, lr=5e-3, gamma=0.0, batch_size=32, learn_step=2, seed=3)]
    if cls is RainbowDQN:
        agents[0].v_min, agents[0].v_max = -0.5, 1.5
    _, fitness = train_off_policy(
        env, "Locks", pop=agents, memory=ReplayBuffer(1_000), max_steps=800, evo_steps=400, eval_loop=4,
        learning_delay=64, eps_end=0.2, verbose=False, seed=2,
    )  # fmt: skip
    assert fitness[-1] == [1.0]
    env.close()


def test_a_saved_policy_keeps_its_dials(tmp_path: Any) -> None:
    agent = DQN(BOX, PAIR, net_config=NET, seed=1)
    agent.save_checkpoint(tmp_path / "agent.pt")
    twin = DQN.load(tmp_path / "agent.pt")
    obs = np.random.default_rng(1).normal(size=(9, 2)).astype(np.float32)
    assert (twin.get_action(obs) == agent.get_action(obs)).all()
    assert twin.action_space == PAIR
