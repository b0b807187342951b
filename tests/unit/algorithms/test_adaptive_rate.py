"""A learning rate that follows the divergence of rollouts: by the table, and in whole runs of rows and of modules."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import agilerl
from agilerl.algorithms import PPO
from agilerl.errors import ConfigError

SPACES = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2)
TINY: dict[str, Any] = {"num_envs": 4, "learn_step": 64, "evo_steps": 256, "eval_episodes": 1, "update_epochs": 4}

TINY_CONFIG: dict[str, Any] = {
    "algorithm": {"name": "PPO", "lr_schedule": "adaptive", "learn_step": 64, "update_epochs": 4},
    "environment": {"num_envs": 4},
    "training": {"evo_steps": 256, "eval_episodes": 1, "pop_size": 2},
}


def agent(**settings: Any) -> PPO:
    return PPO(*SPACES, seed=0, net_config={"latent_dim": 8}, **{"lr_schedule": "adaptive", "lr": 1e-3, **settings})


@pytest.mark.parametrize(
    ("divergence", "aim", "after"),
    [
        (0.0049, None, 1e-3 / 0.7),  # below half of 0.01: by sqrt(1 / 0.49)
        (0.005, None, 1e-3),
        (0.02, None, 1e-3),
        (0.0225, None, 1e-3 / 1.5),  # above twice 0.01
        (0.025, 0.1, 2e-3),
        (0.4, 0.1, 0.5e-3),
        (1e-5, 0.1, 1e-2),  # by ten, and not by a hundred
        (20.0, 0.1, 1e-4),
        (float("nan"), 0.1, 1e-3),
        (-1e-9, 0.1, 1e-2),  # an estimate of nearly nothing
    ],
)
def test_the_rate_moves_by_the_table(divergence: float, aim: float | None, after: float) -> None:
    member = agent(target_kl=aim)
    member.adapt_rate(divergence)
    assert member.lr == pytest.approx(after, rel=1e-12)
    assert member.optimizer.optimizer.param_groups[0]["lr"] == pytest.approx(after, rel=1e-12)


def test_the_rate_stays_between_its_limits() -> None:
    high, low = agent(lr=9e-3), agent(lr=1.2e-6)
    high.adapt_rate(0.0)
    low.adapt_rate(1.0)
    assert (high.lr, low.lr) == (1e-2, 1e-6)


def test_a_rate_that_was_found_rises_by_half_at_a_time_and_to_three_times_at_most() -> None:
    """A converged policy hardly moves: MiniGrid-DoorKey-5x5-v0 was solved and lost again at rates that swung."""
    member, rates = agent(lr=1e-5), []
    for divergence in (1e-5, 0.0025, 0.0, 0.09, 0.0, 0.0049, 0.0, 0.0, 0.04, 0.0):
        member.adapt_rate(divergence)
        rates.append(member.lr)
    # Tenfold, doubled, tenfold, and a third of that is found; by half, by 1 / 0.7, to three times what was found.
    assert rates == pytest.approx([1e-4, 2e-4, 2e-3, 2e-3 / 3, 1e-3, 1e-3 / 0.7, 2e-3, 2e-3, 1e-3, 1.5e-3], rel=1e-12)
    copy = agent(lr=1e-3)
    copy.load_run_state(member.run_state())
    for each in (member, copy, member.clone()):
        each.adapt_rate(0.0)
        each.adapt_rate(0.0)
        assert each.lr == pytest.approx(2e-3, rel=1e-12), "three times 2e-3 / 3"


def test_other_schedules_leave_it_and_unknown_ones_are_named() -> None:
    assert not agent(lr_schedule="linear").adapts_rate
    with pytest.raises(ConfigError, match="schedule 'adaptiv'"):
        agent(lr_schedule="adaptiv")
    with pytest.raises(ConfigError, match="schedule 'adaptive'"):
        PPO(*SPACES, clip_schedule="adaptive")


@pytest.mark.parametrize("learner", ["fused", "sequential"])
@pytest.mark.parametrize(("aim", "epochs"), [(1e-9, 1), (1e9, 4)])
def test_epochs_end_beyond_twice_the_divergence_aimed_at(aim: float, epochs: int, learner: str) -> None:
    run = agilerl.train(
        "CartPole-v1", steps=64, seed=1, out=None, verbose=False, evolution=False, learner=learner, target_score=None,
        config={**TINY_CONFIG, "algorithm": {**TINY_CONFIG["algorithm"], "target_kl": aim, "batch_size": 16}},
    )  # fmt: skip
    assert run.result["updates"] == 2 * epochs * 4, "members x epochs x minibatches"


@pytest.mark.thorough
@pytest.mark.parametrize("learner", ["fused", "sequential"])
def test_members_find_their_rates_from_both_sides(learner: str) -> None:
    """Two members that begin a thousand times apart come nearer to each other with every rollout."""
    rates: list[list[float]] = []
    founders = agilerl.train(
        "CartPole-v1", "PPO", preset=False, population=2, steps=64, out=None, verbose=False, **TINY
    )
    for member, rate in zip(founders.population, (1e-5, 1e-2), strict=True):
        member.lr = rate
    agilerl.train(
        "CartPole-v1", agents=founders.population, steps=2048, seed=1, out=None, verbose=False, evolution=False,
        learner=learner, target_score=None, config=TINY_CONFIG,
        callbacks=[lambda record: rates.append([m.hyperparameters["lr"] for m in record.members])],
    )  # fmt: skip
    low, high = zip(*rates, strict=True)
    assert low[1] > low[0] > 1e-5
    assert high[-1] / low[-1] < 10, "a thousand at the start"
