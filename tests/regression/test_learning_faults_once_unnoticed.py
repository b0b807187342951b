"""What reaches replay and updates off-policy: rewards, weights, the first update; and the mode agents are left in."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

import agilerl
from agilerl.algorithms import DQN, PPO, SAC, RainbowDQN, dqn
from agilerl.components.replay_buffer import PrioritizedReplayBuffer, ReplayBuffer
from agilerl.engine.learner import Group
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs

OBS, CHOICE = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)
NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
WAGES = [-8.0, -0.5, 0.0, 3.0]


class Wages(gym.Env[np.ndarray, int]):
    """Four steps that earn -8, -0.5, 0 and 3, whatever is done."""

    observation_space, action_space = OBS, CHOICE

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        obs = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return obs, WAGES[self.time - 1], self.time == len(WAGES), False, {}


class CustomLearn(DQN):
    """Brings its own `learn`, so that the published loop drives it; keeps how full the memory was at each call."""

    memory: ClassVar[Any] = None
    counters: ClassVar[list[int]] = []

    def learn(self, experiences: Any, **kwargs: Any) -> float:
        if self.memory is not None:
            self.counters.append(self.memory.counter)
        return 0.0


def envs(env: Any = Wages) -> Any:
    return make_vect_envs(make_env=env, num_envs=2)


def members(cls: Any = DQN, size: int = 2, **options: Any) -> list[Any]:
    return cls.population(size, OBS, CHOICE, seed=1, **{"net_config": NET, **options})


# --- rewards

LEARNED = [
    ({}, WAGES),
    ({"reward_floor": -1.0}, [-1.0, -0.5, 0.0, 3.0]),
    ({"reward_scale": 0.25}, [-2.0, -0.125, 0.0, 0.75]),
    ({"clip_rewards": True}, [-1.0, -1.0, 0.0, 1.0]),
    ({"reward_floor": -1.0, "reward_scale": 2.0}, [-2.0, -1.0, 0.0, 6.0]),
    ({"clip_rewards": True, "reward_scale": 0.5}, [-0.5, -0.5, 0.0, 0.5]),
]


@pytest.mark.parametrize("cls", [DQN, CustomLearn])
@pytest.mark.parametrize(("asked", "expected"), LEARNED)
def test_replay_gets_rewards_as_they_are_to_be_learned_from_and_fitness_as_they_are(
    asked: dict[str, Any], expected: list[float], cls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[np.ndarray] = []
    write = ReplayBuffer.write

    def spy(self: ReplayBuffer, obs: Any, action: Any, reward: Any, *rest: Any, **named: Any) -> int:
        stored.append(np.array(reward))
        return write(self, obs, action, reward, *rest, **named)

    monkeypatch.setattr(ReplayBuffer, "write", spy)
    monkeypatch.setattr(dqn, "DQN", cls)
    run = agilerl.train(
        Wages, "DQN", population=2, steps=16, evo_steps=16, num_envs=2, eval_episodes=2, batch_size=4,
        learning_delay=8, device="cpu", out=None, verbose=False, **asked,
    )  # fmt: skip
    rewards = np.concatenate(stored)
    assert len(rewards) == 2 * 16
    assert sorted(rewards.tolist()) == sorted(8 * expected)
    assert run.history == [[sum(WAGES)] * 2]


# --- SAC


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (gym.spaces.Box(-2, 2, (3,)), -3.0),
        (gym.spaces.Box(-1, 1, (1,)), -1.0),
        (gym.spaces.Box(0, 1, (2, 2)), -4.0),
        (gym.spaces.Discrete(5), 0.98 * math.log(5)),
        (gym.spaces.Discrete(2), 0.98 * math.log(2)),
    ],
)
def test_the_usual_target_entropy_of_sac_is_minus_a_or_most_of_that_of_uniform_choices(
    space: gym.Space[Any], expected: float
) -> None:
    agent = SAC(OBS, space, net_config=NET, seed=1)
    assert agent.target_entropy == pytest.approx(expected, rel=1e-12)
    assert agent.update_hyperparameters()["target_entropy"] == agent.target_entropy
    assert SAC(OBS, space, net_config=NET, seed=1, target_entropy=0.5).target_entropy == 0.5


# --- weights of prioritised replay


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Row weights [N, B] of every update of RainbowDQN from here on."""
    found: list[np.ndarray] = []
    update = RainbowDQN.update

    def spy(self: RainbowDQN, engine: Any, batch: Any) -> Any:
        found.append(np.atleast_2d(batch.weight.detach().double().numpy().copy()))
        return update(self, engine, batch)

    monkeypatch.setattr(RainbowDQN, "update", spy)
    return found


@pytest.mark.parametrize("learner", ["fused", "sequential"])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_prioritised_weights_are_divided_by_the_members_own_batch_size(
    alpha: float, learner: str, weights: list[np.ndarray]
) -> None:
    """With α = 0 every importance weight is 1, so that each of B rows counts 1 / B; with α = 1 none counts more."""
    pop = members(RainbowDQN, learn_step=2)
    pop[0].batch_size, pop[1].batch_size = 8, 4
    train_off_policy(
        envs(), "Wages", pop=pop, memory=PrioritizedReplayBuffer(100, alpha=alpha, seed=1), per=True, max_steps=32,
        evo_steps=32, eval_steps=2, verbose=False, seed=3, learner=learner,
    )  # fmt: skip
    rows = [row[row > 0] for block in weights for row in block if row.any()]  # a member whose batch is not there waits
    assert {len(row) for row in rows} == {4, 8}
    scaled = [row * len(row) for row in rows]
    if alpha == 0.0:
        for row in scaled:
            np.testing.assert_allclose(row, 1.0, rtol=1e-6)
    else:
        assert max(row.max() for row in scaled) <= 1 + 1e-6
        assert min(row.min() for row in scaled) < 0.9  # new priorities tell rows apart


def test_an_agent_alone_divides_prioritised_weights_by_its_batch_size(weights: list[np.ndarray]) -> None:
    (agent,) = members(RainbowDQN, 1, batch_size=4)
    rng = np.random.default_rng(0)
    experiences = {
        "obs": torch.from_numpy(rng.uniform(-1, 1, (4, 2)).astype(np.float32)),
        "action": torch.tensor([[0], [1], [1], [0]]),
        "reward": torch.ones(4, 1),
        "next_obs": torch.from_numpy(rng.uniform(-1, 1, (4, 2)).astype(np.float32)),
        "done": torch.zeros(4, 1),
        "weights": torch.tensor([[1.0], [0.5], [0.25], [0.125]]),
        "idxs": torch.arange(4).unsqueeze(1),
    }
    agent.learn(experiences, per=True)
    assert [block.tolist() for block in weights] == [[[0.25, 0.125, 0.0625, 0.03125]]]


# --- when learning starts


def test_the_learning_delay_counts_transitions_ever_stored_not_those_that_a_small_memory_still_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two lanes store two transitions a vector step: the first count above 20 is 22, in a memory of 10."""
    starts: dict[str, list[int]] = {}
    for cls in (CustomLearn, DQN):
        memory = ReplayBuffer(max_size=10, seed=1)
        counters: list[int] = []
        monkeypatch.setattr(CustomLearn, "memory", memory)
        monkeypatch.setattr(CustomLearn, "counters", counters)
        with monkeypatch.context() as patch:
            if cls is DQN:
                learn = Group.learn_each

                def count(
                    self: Any, batches: Any, live: Any, m: Any = memory, c: Any = counters, f: Any = learn
                ) -> Any:
                    c += [m.counter] * batches.count
                    return f(self, batches, live)

                patch.setattr(Group, "learn_each", count)
            train_off_policy(
                envs(), "Wages", pop=members(cls, 1, batch_size=4, learn_step=2), memory=memory, learning_delay=20,
                max_steps=40, evo_steps=40, eval_steps=2, verbose=False, seed=3,
            )  # fmt: skip
        starts[cls.__name__] = counters
    assert starts == {name: list(range(22, 41, 2)) for name in ("CustomLearn", "DQN")}


# --- the mode in which agents are left


def modes(agent: Any) -> list[bool]:
    return [agent.training, *(module.training for _, module in agent.policy_module().named_modules())]


@pytest.mark.parametrize("cls", [DQN, CustomLearn, RainbowDQN])
def test_agents_train_on_after_the_evaluations_of_off_policy_training(cls: Any) -> None:
    pop = members(cls, batch_size=4)
    found, _ = train_off_policy(
        envs(), "Wages", pop=pop, memory=ReplayBuffer(100, seed=1), max_steps=16, evo_steps=16, eval_steps=2,
        verbose=False, seed=3,
    )  # fmt: skip
    assert all(all(modes(agent)) for agent in found)


def test_agents_train_on_after_the_evaluations_of_on_policy_training() -> None:
    pop = members(PPO, learn_step=16, num_envs=2)
    found, _ = train_on_policy(envs(), "Wages", pop=pop, max_steps=16, evo_steps=16, eval_steps=2, verbose=False)
    assert all(all(modes(agent)) for agent in found)


def test_agents_train_on_after_an_evaluation_that_was_interrupted() -> None:
    class Interrupted(Wages):
        """Ctrl-C at the second step of evaluation: after 2 members have made 16 steps each."""

        steps = 0

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            Interrupted.steps += 1
            if Interrupted.steps == 2 * 16 + 2:
                assert not any(agent.training for agent in pop), "in the middle of an evaluation"
                raise KeyboardInterrupt
            return super().step(action)

    pop = members(batch_size=4)
    with pytest.raises(KeyboardInterrupt):
        train_off_policy(
            envs(Interrupted), "Wages", pop=pop, memory=ReplayBuffer(100, seed=1), max_steps=16, evo_steps=16,
            verbose=False, seed=3,
        )  # fmt: skip
    assert all(all(modes(agent)) for agent in pop)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("cls", [DQN, PPO, RainbowDQN])
def test_a_test_of_an_agent_leaves_its_mode_as_it_was(cls: Any, training: bool) -> None:
    (agent,) = members(cls, 1)
    agent.set_training_mode(training)
    agent.test(envs(), max_steps=2)
    agent.evaluate(2, env=Wages())
    assert set(modes(agent)) == {training}
