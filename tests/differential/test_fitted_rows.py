"""Fitted Q evaluation: fused == sequential == a loop with torch.nn and torch.optim, in float64."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from off_policy_case import BOX, CHOICE, OBS, net_config, population
from torch import Tensor, nn

from agilerl.algorithms import CQN, TD3BC
from agilerl.collect.fitted import BATCH, EPSILON, LR, TAU, FittedEvaluator, FittedQ
from agilerl.collect.offline import fill
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import OfflineOptions
from agilerl.core.rng import Purpose, seeds, stream
from agilerl.data.dataset import read_dataset
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner

GAMMA, UPDATES, ROWS, SEED, GENERATION = 0.9, 60, 300, 5, 2


def data(space: gym.Space[Any]) -> Any:
    rng = np.random.default_rng(3)
    continuous = isinstance(space, gym.spaces.Box)
    action = rng.uniform(space.low, space.high, (ROWS, 2)) if continuous else rng.integers(3, size=ROWS)
    return read_dataset(
        {
            "observations": rng.normal(size=(ROWS, 5)) * [1, 2, 3, 4, 5] + 1,
            "next_observations": rng.normal(size=(ROWS, 5)) * [1, 2, 3, 4, 5] + 1,
            "actions": action,
            "rewards": 10 * rng.normal(size=ROWS),
            "terminals": rng.random(ROWS) < 0.1,
            "timeouts": rng.random(ROWS) < 0.1,
        }
    )


def evaluator(given: Any, agent: Any, learner: str) -> FittedEvaluator:
    options = OfflineOptions(fitness="fqe", fqe_gamma=GAMMA, fqe_updates=UPDATES, learner=learner)  # type: ignore[arg-type]
    rows = ReplayBuffer(ROWS, dtype=torch.float64)
    fill(rows, given, agent, options)
    return FittedEvaluator(given, rows, options, SEED)


def plain(agent: Any, given: Any, judge: FittedQ, stored: Tensor) -> float:
    """The value of one policy, written out: one network, its target, Adam; in the units of the rewards.

    stored: the data's actions as the network takes them.
    """
    obs, later = (
        torch.as_tensor(x).double() for x in (given.obs.astype(np.float32), given.next_obs.astype(np.float32))
    )
    reward = torch.as_tensor(given.reward.astype(np.float64))
    going_on = GAMMA * (1 - torch.as_tensor(given.terminated).double())
    returns, after = [], 0.0
    for r, over in zip(given.reward[::-1], given.ended[::-1], strict=True):
        after = r + (0 if over else GAMMA * after)
        returns.append(after)
    mean, scale = float(np.mean(returns)), float(np.std(returns))
    low, high = (bound / (1 - GAMMA) for bound in (min(given.reward.min(), 0), max(given.reward.max(), 0)))
    chosen = torch.as_tensor(np.asarray(agent.greedy(agent.policy_output(later).detach())))
    q, target = judge.critic, copy.deepcopy(judge.critic)
    optimizer = torch.optim.Adam(q.parameters(), lr=LR)
    continuous = isinstance(agent.action_space, gym.spaces.Box)

    def value(network: Any, x: Tensor, a: Tensor) -> Tensor:
        """Q in the units of the rewards."""
        found = network(x, a.double())[:, 0] if continuous else network(x)[torch.arange(len(a)), a.long()]
        return mean + scale * found

    rng = stream(SEED, Purpose.FITTED_EVALUATION, GENERATION)
    for _ in range(0, UPDATES, 25):
        for rows in rng.integers(ROWS, size=(min(25, UPDATES - _), BATCH)):
            with torch.no_grad():
                y = reward[rows] + going_on[rows] * value(target, later[rows], chosen[rows])
                y = y.clamp(low, high)
            optimizer.zero_grad()
            nn.functional.mse_loss(value(q, obs[rows], stored[rows]) / scale, y / scale).backward()
            optimizer.step()
            with torch.no_grad():
                for p, t in zip(q.parameters(), target.parameters(), strict=True):
                    t.copy_(TAU * p + (1 - TAU) * t)
    first = np.concatenate(([0], np.flatnonzero(given.ended[:-1]) + 1))
    with torch.no_grad():
        action = torch.as_tensor(np.asarray(agent.greedy(agent.policy_output(obs[first]))))
        return float(value(target, obs[first], action).mean())


@pytest.mark.parametrize("space", [pytest.param(CHOICE, id="choices"), pytest.param(BOX, id="box")])
def test_policies_are_judged_over_rows_as_one_by_one_and_as_in_a_plain_loop(space: Any) -> None:
    def make(i: int) -> Any:
        own = {"index": i, "net_config": net_config(i), "seed": i}
        return CQN(OBS, space, **own) if space is CHOICE else TD3BC(OBS, space, **own)

    agents, given = population(make), data(space)
    fused, apart = (
        evaluator(given, agents[0], how).population(Learner(agents, choose(agents, "sequential")), GENERATION)
        for how in ("fused", "sequential")
    )
    together = Learner(agents, choose(agents, "fused"))
    again = evaluator(given, agents[0], "fused").population(together, GENERATION)
    together.release()
    assert len({round(value, 6) for value in fused}) == len(agents), "the policies differ"
    assert fused == pytest.approx(apart, abs=1e-9)
    assert fused == pytest.approx(again, abs=1e-9)

    one = evaluator(given, agents[0], "fused")
    own = int(seeds(SEED, Purpose.FITTED_EVALUATION, 1, GENERATION)[0])
    seen = given.obs.astype(np.float32)
    statistics = seen.mean(0, np.float64), seen.var(0, np.float64)
    low, high = one._bounds
    for agent, value in zip(agents, fused, strict=True):
        judge = FittedQ(OBS, space, low=low, high=high, statistics=statistics, dtype=torch.float64, seed=own)
        stored = one.rows.gather(np.arange(ROWS))["action"]
        assert plain(agent, given, judge, stored) == pytest.approx(value, abs=1e-6)
        assert EPSILON == 1e-6


def test_another_generation_is_judged_from_other_weights_and_rows() -> None:
    agents = population(lambda i: CQN(OBS, CHOICE, index=i, net_config=net_config(i), seed=i))
    judge = evaluator(data(CHOICE), agents[0], "auto")
    learner = Learner(agents)
    first, again, other = (judge.population(learner, number) for number in (0, 0, 1))
    assert first == again
    assert first != pytest.approx(other, abs=1e-6)
