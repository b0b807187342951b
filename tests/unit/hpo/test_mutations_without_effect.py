"""Mutations that can change nothing say so."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from agilerl import errors
from agilerl.algorithms import DQN
from agilerl.errors import AgileRLWarning
from agilerl.hpo import HyperparameterConfig, Mutations, RLParameter

OBS, CHOICE = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


@pytest.fixture(autouse=True)
def nothing_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())


def test_hyperparameter_mutations_without_hp_config_warn_once() -> None:
    agents = [DQN(OBS, CHOICE, index=i, seed=i) for i in range(2)]
    mutations = Mutations(0, 0, 0, 0, 0, 1, rand_seed=0)
    with pytest.warns(AgileRLWarning, match=r"Mutations\(rl_hp=1\) changes nothing: no DQN .* fix: hp_config="):
        mutations.mutation(agents)
    assert [agent.mut for agent in agents] == ["None", "None"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mutations.mutation(agents)


@pytest.mark.parametrize(("architecture", "hp_config"), [
    (0.5, None), (0, HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2))),
])  # fmt: skip
def test_mutations_with_an_effect_do_not_warn(architecture: float, hp_config: Any) -> None:
    agents = [DQN(OBS, CHOICE, index=i, seed=i, hp_config=hp_config) for i in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Mutations(0, architecture, 0, 0, 0, 1, rand_seed=0).mutation(agents)
