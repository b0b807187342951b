"""Teams that differ in every hyperparameter of an update learn together, in torch and in C, what each learns alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.algorithms import IPPO, MADDPG, MAPPO, MATD3
from agilerl.engine.rows.kernels import TORCH
from agilerl.envs.protocol import JOINT
from tests.differential.apart import CALLS, SHRINK, assert_each_learns_as_alone, assert_same_state, moved, vary
from tests.differential.native_case import BOTH, FOUND
from tests.differential.off_policy_case import state
from tests.differential.team_case import batches, members
from tests.differential.team_rollout_case import collect, teams, train


@pytest.mark.parametrize(
    ("kind", "team", "options"),
    [
        (MADDPG, "two groups", {"temperature": 0.7, "norm": True}),
        (MATD3, "unequal groups", {"policy_noise": 0.8, "policy_freq": 3}),
    ],
)
def test_teams_learn_together_what_each_learns_alone(kind: Any, team: str, options: dict[str, Any]) -> None:
    given = batches(kind, team, CALLS[-1].last, 6, torch.float64, masked=True, absent=True)
    fields = {name: x for name, x in given.fields.items() if name != "discount"}
    for name in ("obs", "next_obs"):
        fields[name] = {key: x for key, x in fields[name].items() if key != JOINT}
    agents = members(kind, team, **options)
    kernels = [TORCH] if FOUND is None else [TORCH, BOTH]
    assert_each_learns_as_alone(agents, replace(given, fields=fields, number=3), kernels)


@pytest.mark.parametrize("kind", [IPPO, MAPPO])
def test_teams_learn_from_rollouts_together_what_each_learns_alone(kind: Any) -> None:
    agents, draw = teams(kind), np.random.default_rng(0)
    for agent, size in zip(agents, (12, 10, 20), strict=True):
        agent.batch_size, agent.max_grad_norm, agent.update_epochs, agent.target_kl = size, 0.3, 1, None
        agent.ent_coef, agent.clip_value_loss, agent.clip_coef, agent.lr = 0.1, True, 0.02, 1e-2
    names, buffers = vary(agents, "gamma", "gae_lambda"), [collect(agents, draw)]
    fused, sequential = ([agent.clone() for agent in agents] for _ in range(2))
    assert train(fused, "fused", buffers) == train(sequential, "sequential", buffers)
    expected = state(sequential)
    assert_same_state(fused, expected, kind.__name__)
    for name in names:
        other = agents[0].clone()
        setattr(other, name, getattr(other, name) * SHRINK)
        train([other], "sequential", buffers)
        assert moved(other, expected, 0) > 1e-8, f"{name} makes no difference to this rollout"
