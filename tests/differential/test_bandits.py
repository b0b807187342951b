"""Bandits act and learn alike in rows of one population, and member by member with modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.training.train_bandits import train_bandits
from agilerl.utils.utils import create_population
from agilerl.wrappers.learning import BanditEnv

NETS = [{"latent_dim": 8, "encoder_config": {"hidden_size": [w]}, "head_config": {"hidden_size": [w]}} for w in (8, 16)]


def bandit() -> BanditEnv:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 3))
    return BanditEnv(features, (features[:, 0] * features[:, 1] > 0).astype(int) + (features[:, 2] > 1))


def population(algo: str) -> list[Any]:
    env, agents = bandit(), []
    for index, net in enumerate((NETS[0], NETS[1], NETS[0])):
        (agent,) = create_population(
            algo, env.observation_space, env.action_space, net, {"BATCH_SIZE": 8 + 2 * index, "GAMMA": 0.3, "LR": 1e-2},
            seed=index,
        )  # fmt: skip
        agent.index = index
        for network in agent.evolvable_attributes(networks_only=True).values():
            for parameter in network.parameters():
                parameter.data = parameter.data.double()
        agent.follow_optimizers()
        agents.append(agent)
    return agents


def trained(algo: str, learner: str) -> tuple[list[Any], list[list[float]]]:
    return train_bandits(
        bandit(), "noughts", algo, population(algo), ReplayBuffer(max_size=500, dtype=torch.float64), max_steps=150,
        evo_steps=50, eval_steps=20, verbose=False, seed=4, learner=learner,
    )  # fmt: skip


@pytest.mark.parametrize("algo", ["NeuralUCB", "NeuralTS"])
def test_rows_and_modules_are_alike(algo: str) -> None:
    (rows, fitness), (modules, same) = trained(algo, "fused"), trained(algo, "sequential")
    assert fitness == same
    for mine, theirs in zip(rows, modules, strict=True):
        assert mine.regret == theirs.regret
        assert mine.regret[-1] > 0
        assert mine.rounds == theirs.rounds == 150
        assert torch.allclose(mine.sigma_inv, theirs.sigma_inv, rtol=1e-9, atol=1e-11)
        for a, b in zip(mine.actor.parameters(), theirs.actor.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-11)
            assert a.dtype == torch.float64


def test_the_distance_to_a_target_has_the_gradient_of_autograd() -> None:
    """A step on the distance alone moves rows, narrow and wide ones, as it moves modules."""
    results = []
    for plain in (False, True):
        agents = population("NeuralUCB")
        for agent in agents:
            agent.reg = 3.0
            with torch.no_grad():
                for parameter in agent.actor_target.parameters():
                    parameter.add_(0.25)
            batch = {"obs": np.zeros((4, 9), np.float32), "reward": np.zeros(4, np.float32)}
            loss = float(agent.learn_batch(agent.make_batch(batch), plain).loss)
            count = sum(parameter.numel() for parameter in agent.actor.parameters())
            assert loss == pytest.approx(3.0 * count * 0.0625), "f is 0, whatever it reads"
        results.append([p.detach().clone() for agent in agents for p in agent.actor.parameters()])
    for mine, theirs in zip(*results, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-12)
