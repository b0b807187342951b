"""A mutation is recorded as done where it has changed the agent, and nowhere else: of the smallest networks, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import find_algorithm
from agilerl.core.checkpoint import digest_tree
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.operators import HyperparameterConfig, RLParameter
from agilerl.hpo.parameter_noise import MIN_SCALE, largest_scale

OBS = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = {"DQN": spaces.Discrete(2), "PPO": spaces.Discrete(2), "DDPG": spaces.Box(-1, 1, (1,), np.float32)}
KINDS = {"architecture": 1, "parameters": 3, "activation": 4, "rl_hp": 5}


def smallest(algo: str, seed: int) -> Any:
    part = {"hidden_size": [1], "min_mlp_nodes": 1, "max_mlp_nodes": 2, "max_hidden_layers": 1}
    net = {"latent_dim": 1, "min_latent_dim": 1, "max_latent_dim": 1, "encoder_config": part, "head_config": part}
    rate = "lr_actor" if algo == "DDPG" else "lr"
    ranges = HyperparameterConfig(**{rate: RLParameter(1e-3, 1e-3), "gamma": RLParameter(0.9, 0.99)})
    return find_algorithm(algo)(OBS, ACTIONS[algo], net_config=net, hp_config=ranges, seed=seed, **{rate: 1e-3})


def bits(agent: Any) -> str:
    state = agent.state()
    return digest_tree(
        {"networks": state["networks"], "values": {k: repr(v) for k, v in agent.hyperparameters().items()}}
    )


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algo", ACTIONS)
def test_what_is_recorded_is_what_has_changed(algo: str, kind: str, published: bool) -> None:
    changed = []
    for seed in range(6):
        agent, chances = smallest(algo, seed), [0.0] * 6
        chances[KINDS[kind]] = 1.0
        before = bits(agent)
        Mutations(*chances, rand_seed=seed, published=published, mutation_sd=0.5).mutation([agent])
        record = agent.mutation_record
        assert (bits(agent) != before) == (record.kind != "none"), record
        assert (str(agent.mut) == "None") == (record.kind == "none")
        changed.append(record.kind)
    if kind == "parameters":
        assert set(changed) == {"parameters"}, "there is always a step that is small enough"


def test_noise_that_is_none_is_no_mutation() -> None:
    agent = smallest("DQN", 0)
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.zero_()
    Mutations(0, 0, 0, 1, 0, 0, rand_seed=0).mutation([agent])
    assert (agent.mutation_record.kind, agent.mut) == ("none", "None")


def test_the_largest_scale_is_found_below_the_steps_of_a_bisection_too() -> None:
    """y = w x with w = 1e-5: noise of 1 changes it by 1e5 times, so that 2 % are a scale of 2e-7 at most."""
    network = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        network.weight.fill_(1e-5)
    scale, change = largest_scale(network, {"weight": torch.ones(1, 1)}, torch.ones(4, 1), 0.02, 0.0)
    assert 1e-7 <= scale <= 2e-7
    assert change == pytest.approx(scale * 1e5, rel=1e-3)
    with torch.no_grad():
        network.weight.fill_(1e-12)
    assert largest_scale(network, {"weight": torch.ones(1, 1)}, torch.ones(4, 1), 0.02, 0.0) == (0.0, 0.0)
    assert MIN_SCALE > 1e-12
