"""Critics of continuous actions judge several actions of each observation from one encoding."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import CQL
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner

OBS, BOX = gym.spaces.Box(-1, 1, (5,), np.float64), gym.spaces.Box(-1, 1, (2,), np.float64)
MEMBERS, ACTIONS, BATCH = 3, 4, 6


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("learner", ["fused", "sequential"])
def test_several_actions_of_an_observation_are_worth_what_each_is_worth_alone(share: bool, learner: Any) -> None:
    net = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 4}
    agents = [CQL(OBS, BOX, i, net_config=net, share_encoders=share, seed=i) for i in range(MEMBERS)]
    for agent in agents:
        for name in agent.registry.all_registered():
            getattr(agent, name).double()
    draw = torch.Generator().manual_seed(0)
    obs = torch.rand(MEMBERS, BATCH, 5, generator=draw, dtype=torch.float64)
    actions = torch.rand(MEMBERS, ACTIONS, BATCH, 2, generator=draw, dtype=torch.float64)
    chosen = Learner(agents, choose(agents, learner))
    for group in chosen.groups:
        critics = group.engine.networks(("critic_1", "critic_2"))
        own, given = (x[group.members] if learner == "fused" else x[group.members[0]] for x in (obs, actions))
        each = torch.stack([critics(own, given.select(-3, k)) for k in range(ACTIONS)], -3)
        together = critics(own, given.flatten(-3, -2))
        assert torch.allclose(together, each.flatten(-3, -2), rtol=0, atol=1e-12)
        assert together.std() > 1e-3
    chosen.release()
