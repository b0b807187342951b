"""MADDPG and MATD3: fused == sequential in float64, with groups, different spaces, masks and absent agents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from off_policy_case import assert_equal, state
from team_reference import Reference

from agilerl.algorithms.maddpg import MADDPG
from agilerl.algorithms.matd3 import MATD3
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatch
from agilerl.envs.protocol import AGENTS, PRESENT

OBS = {
    "speaker_0": spaces.Box(-1, 1, (3,)),
    "agent_0": spaces.Box(-1, 1, (4,)),
    "agent_1": spaces.Box(-1, 1, (4,)),
    "mover_0": spaces.Dict({"at": spaces.Box(-1, 1, (2,)), "card": spaces.Discrete(3)}),
}
ACTIONS = {
    "speaker_0": spaces.Discrete(3, start=1),
    "agent_0": spaces.MultiDiscrete([2, 3]),
    "agent_1": spaces.MultiDiscrete([2, 3]),
    "mover_0": spaces.Box(-2, 2, (2,)),
}
MEMBERS, BATCH, FEATURES, MASKS, UPDATES = 3, 8, 3 + 5 + 5 + 2, 3 + 5 + 5, 20


def teams(cls: Any) -> list[Any]:
    made = []
    for i in range(MEMBERS):
        hidden = {"hidden_size": [16 + 8 * (i == 1)]}
        config = {"encoder_config": {**hidden, "activation": "Tanh"}, "latent_dim": 8, "head_config": hidden}
        if i == 2:
            config["encoder_config"] = {"hidden_size": [16, 12], "activation": "Tanh"}
        team = cls(
            OBS, ACTIONS, index=i, seed=i, net_config=config, gamma=0.9 + 0.03 * i, tau=0.05, lr_actor=1e-3 * (i + 1)
        )
        for name in team.registry.all_registered():
            getattr(team, name).double()
        made.append(team)
    return made


def observations(draw: np.random.Generator) -> dict[str, Any]:
    lead = (MEMBERS, BATCH)
    seen: dict[str, Any] = {
        a: torch.from_numpy(draw.uniform(-1, 1, (*lead, *OBS[a].shape))) for a in OBS if a != "mover_0"
    }
    seen["mover_0"] = {
        "at": torch.from_numpy(draw.uniform(-1, 1, (*lead, 2))), "card": torch.from_numpy(draw.integers(0, 3, lead)),
    }  # fmt: skip
    there = (draw.random((*lead, 4)) < 0.8).astype(np.int8)
    for k, agent in enumerate(OBS):  # what stands for an agent that is not there is zero
        for part in seen[agent].values() if isinstance(seen[agent], dict) else (seen[agent],):
            part[torch.from_numpy(there[..., k] == 0)] = 0
    return {AGENTS: seen, PRESENT: torch.from_numpy(there)}


def batches(seed: int = 0, updates: int = UPDATES, n_step: bool = False) -> list[TransitionBatch]:
    """`n_step`: with discounts and importance weights of their own, as n-step and prioritised memories give them."""
    draw, made = np.random.default_rng(seed), []
    lead = (MEMBERS, BATCH)
    for number in range(1, updates + 1):
        action = np.concatenate(
            [draw.integers(0, n, (*lead, 1)) for n in (3, 2, 3, 2, 3)] + [draw.uniform(-1, 1, (*lead, 2))], -1
        )
        masks = []
        for _ in range(2):
            legal = draw.random((*lead, MASKS)) < 0.7
            legal[..., [0, 3, 5, 8, 10]] = True  # one choice of each component at least
            masks.append(torch.from_numpy(legal))
        noise = {"gumbel": draw.gumbel(size=(*lead, FEATURES)), "smoothing": draw.standard_normal((*lead, FEATURES))}
        done, equal = torch.from_numpy((draw.random((*lead, 4)) < 0.2).astype(np.float64)), torch.full(lead, 1 / BATCH)
        more: dict[str, Any] = {"weight": equal.double()}
        if n_step:
            steps = torch.from_numpy(draw.integers(1, 4, (*lead, 1)))
            more = {"discount": 0.9**steps * (1 - done), "weight": torch.from_numpy(draw.random(lead)) / BATCH}
        made.append(
            TransitionBatch(
                observations(draw), torch.from_numpy(action), torch.from_numpy(draw.normal(size=(*lead, 4))),
                observations(draw), done, next_mask=masks[0], obs_mask=masks[1],
                noise={name: torch.from_numpy(x) for name, x in noise.items()}, number=number, **more,
            )
        )  # fmt: skip
    return made


def train(members: list[Any], kind: str, made: list[TransitionBatch]) -> list[list[int]]:
    learner = Learner(members, choose(members, kind))
    for batch in made:
        for number, group in enumerate(learner.groups):
            own = batch.map(lambda x, rows=group.members: x[rows])
            learner.learn(number, replace(own, obs=group.prepare(own.obs), next_obs=group.prepare(own.next_obs)))
    learner.release()
    return [group.members for group in learner.groups]


@pytest.mark.parametrize("cls", [MADDPG, MATD3])
@pytest.mark.parametrize("n_step", [False, True])
def test_a_population_of_teams_learns_over_rows_what_it_learns_with_modules(cls: Any, n_step: bool) -> None:
    fused = teams(cls)
    sequential, before = [team.clone() for team in fused], state(fused)
    assert choose(fused).name == "fused"
    assert train(fused, "fused", batches(n_step=n_step)) == [[0, 1], [2]]
    assert train(sequential, "sequential", batches(n_step=n_step)) == [[0], [1], [2]]
    after = state(fused)
    assert all((before[name] - after[name]).abs().max() > 1e-6 for name in before)
    assert_equal(fused, sequential)


@pytest.mark.parametrize(("cls", "n_step"), [(MADDPG, False), (MATD3, False), (MATD3, True)])
def test_a_hundred_updates_are_those_of_plain_torch(cls: Any, n_step: bool) -> None:
    members = teams(cls)[:2]
    references = [Reference(team, twins=cls is MATD3) for team in members]
    made = batches(seed=1, updates=100, n_step=n_step)
    for batch in made:
        for number, reference in enumerate(references):
            reference.update(batch.of_member(number))
    train(members, "fused", made)
    for team, reference in zip(members, references, strict=True):
        for name, network in reference.networks().items():
            for mine, theirs in zip(getattr(team, name).parameters(), network.parameters(), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
