"""What is learned from data alone, against numbers known beforehand, through `train_offline`.

The data set of most tests: in the state shown as −1 nothing is paid and the state shown as 1 follows; there an action a
(raw, in [−1, 1]) is paid 1 − (a − ½)², and the episode ends. Behaviour is uniform, so its mean is 0 and not the best.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import BC, CQL, IQL, TD3BC
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.training.train_offline import train_offline
from agilerl.utils.utils import make_vect_envs
from tests.probe.environments import ContinuousPolicyEnv, PolicyEnv

ROWS, GAMMA, LOW, HIGH = 1000, 0.5, ContinuousPolicyEnv.low, ContinuousPolicyEnv.high
STATES = np.array([[-1.0], [1.0]], np.float32)
NET = {"encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}, "latent_dim": 16}
RATES = {"lr_actor": 3e-3, "lr_critic": 3e-3, "tau": 0.05}


def to_environment(raw: np.ndarray) -> np.ndarray:
    return np.asarray(LOW + (raw + 1) / 2 * (HIGH - LOW), np.float32)


def two_states(raw: np.ndarray) -> dict[str, np.ndarray]:
    """The data set above, with the behaviour `raw` [N, 1]."""
    last = np.arange(len(raw)) % 2 == 1
    return {
        "observations": STATES[last.astype(int)],
        "next_observations": STATES[np.ones(len(raw), int)],
        "actions": to_environment(raw),
        "rewards": np.where(last, 1 - (raw[:, 0] - 0.5) ** 2, 0.0),
        "terminals": last,
    }


def uniform() -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, (ROWS, 1))


def train(cls: Any, data: Any, updates: int, make: Any = ContinuousPolicyEnv, **options: Any) -> Any:
    env = make_vect_envs(make_env=make, num_envs=1)
    space = gym.spaces.Box(-2, 2, (1,), np.float32)
    pop = cls.population(1, space, env.single_action_space, seed=1, net_config=NET, batch_size=64, **options)
    train_offline(
        env, "probe", data, pop=pop, memory=ReplayBuffer(max_size=ROWS), max_steps=updates, evo_steps=updates,
        eval_steps=1, verbose=False, seed=2,
    )  # fmt: skip
    env.close()
    return pop[0]


def raw_policy(agent: Any) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(agent.greedy(agent.policy_output(STATES)))[:, 0]


def values(agent: Any, raw: np.ndarray) -> np.ndarray:
    """Q of the first critic [states, actions]."""
    action = torch.as_tensor(raw, dtype=torch.float32)[:, None]
    with torch.no_grad():
        return np.stack([agent.critic_1(np.tile(obs, (len(raw), 1)), action)[:, 0].numpy() for obs in STATES])


def expectile(paid: np.ndarray, share: float) -> float:
    """v with share · E[(x − v)₊] = (1 − share) · E[(v − x)₊], by bisection."""
    low, high = paid.min(), paid.max()
    for _ in range(60):
        v = (low + high) / 2
        more = share * np.maximum(paid - v, 0).mean() > (1 - share) * np.maximum(v - paid, 0).mean()
        low, high = (v, high) if more else (low, v)
    return float(v)


@pytest.mark.slow
def test_iql_learns_expectiles_values_of_the_data_and_a_better_policy_than_its_behaviour() -> None:
    data = two_states(uniform())
    agent = train(IQL, data, 1500, gamma=GAMMA, expectile=0.8, inverse_temperature=20.0, **RATES)
    known = expectile(data["rewards"][1::2], 0.8)
    with torch.no_grad():
        states = agent.value(STATES)[:, 0].numpy()
    assert states == pytest.approx([GAMMA * known, known], abs=0.05)
    raw = np.linspace(-0.9, 0.9, 7)
    assert values(agent, raw) == pytest.approx(np.stack([np.full(7, GAMMA * known), 1 - (raw - 0.5) ** 2]), abs=0.12)
    idle, best = raw_policy(agent)
    assert best == pytest.approx(0.5, abs=0.1), "a normal of deviation 0.16 around ½, cut at 1"
    assert idle == pytest.approx(0.0, abs=0.25), "where all are equally good it clones"


@pytest.mark.slow
def test_td3bc_learns_what_lies_between_the_best_action_and_the_behaviour() -> None:
    agent = train(
        TD3BC, two_states(uniform()), 2000, gamma=GAMMA, alpha=2.5, policy_noise=0.05, noise_clip=0.1, **RATES
    )
    best = 0.5
    for _ in range(50):  # max over a of λ (1 − (a − ½)²) − a², λ = α / mean |Q|
        value = 1 - (best - 0.5) ** 2
        scale = 2.5 / ((value + GAMMA * value) / 2)
        best = 0.5 * scale / (scale + 1)
    assert raw_policy(agent) == pytest.approx([0.0, best], abs=0.08)
    assert values(agent, np.array([best])) == pytest.approx(np.array([[GAMMA * value], [value]]), abs=0.06)


def test_td3bc_without_values_clones() -> None:
    raw = uniform() * 0.2 - 0.5 * np.tile([[1.0], [-1.0]], (ROWS // 2, 1))
    agent = train(TD3BC, two_states(raw), 600, alpha=0.0, policy_freq=1, **RATES)
    assert raw_policy(agent) == pytest.approx([-0.5, 0.5], abs=0.06)


def test_bc_learns_the_mean_of_the_actions_and_not_the_best() -> None:
    raw = np.where(np.arange(ROWS)[:, None] % 4 < 2, 0.9, -0.3)  # the mean is 0.3 in both states
    agent = train(BC, two_states(raw), 500, lr=3e-3)
    assert raw_policy(agent) == pytest.approx([0.3, 0.3], abs=0.05)
    agent.set_training_mode(False)
    assert agent.get_action(STATES)[:, 0] == pytest.approx(to_environment(raw_policy(agent)), abs=1e-5)


def test_bc_learns_how_often_choices_are_taken() -> None:
    rng = np.random.default_rng(3)
    first = np.arange(ROWS) % 2 == 0
    data = {
        "observations": STATES[(~first).astype(int)],
        "next_observations": STATES[(~first).astype(int)],
        "actions": (rng.random(ROWS) < np.where(first, 0.2, 0.7)).astype(np.int64),
        "rewards": rng.normal(size=ROWS),
        "terminals": np.ones(ROWS, bool),
    }
    agent = train(BC, data, 500, make=PolicyEnv, lr=3e-3)
    shares = [data["actions"][first].mean(), data["actions"][~first].mean()]
    with torch.no_grad():
        learned = agent.policy_output(STATES).softmax(-1)[:, 1].numpy()
    assert learned == pytest.approx(shares, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.0, 0.0])
def test_cql_keeps_actions_that_were_never_taken_below_those_of_the_data(alpha: float) -> None:
    """Of what is paid, which grows with the action, the data show the lower half: beyond it nothing is known."""
    raw = -np.abs(uniform())
    data = two_states(raw) | {"rewards": raw[:, 0].astype(float), "terminals": np.ones(ROWS, bool)}
    agent = train(CQL, data, 800, alpha=alpha, num_samples=4, init_temperature=0.02, learn_temperature=False, **RATES)
    shown, never = values(agent, np.linspace(-0.9, -0.1, 5)), values(agent, np.linspace(0.3, 0.9, 5))
    if alpha:
        assert (never.max(-1) < shown.max(-1)).all()
        assert (raw_policy(agent) < 0.15).all()
        assert (raw_policy(agent) > -0.5).all(), "better than the behaviour, whose mean is −½"
    else:
        assert (never.max(-1) > shown.max(-1)).all(), "without the term they are believed"
        assert (raw_policy(agent) > 0.3).all()
