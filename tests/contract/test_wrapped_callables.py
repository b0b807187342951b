"""Decorated callables are called by the names of what they decorate."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import agilerl
from agilerl.algorithms import IPPO, MADDPG, MAPPO, MATD3
from agilerl.errors import ConfigError

NET = {"latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}


def decorated() -> Iterator[tuple[str, Any]]:
    """Every function and method of the package that `functools.wraps` marks."""
    for info in pkgutil.walk_packages(agilerl.__path__, "agilerl."):
        try:
            module = importlib.import_module(info.name)
        except (ImportError, ConfigError):  # an optional package
            continue
        holders = [module, *(v for v in vars(module).values() if inspect.isclass(v) and v.__module__ == info.name)]
        for holder in holders:
            for name, value in vars(holder).items():
                if inspect.isfunction(value) and hasattr(value, "__wrapped__"):
                    yield f"{info.name}.{getattr(holder, '__qualname__', '')}.{name}", value


def test_parameters_of_a_decorator_hide_no_argument() -> None:
    """A parameter of the outer function that can be passed by name is one of the inner function."""
    seen = dict(decorated())
    assert len(seen) > 10
    for place, outer in seen.items():
        inner = inspect.signature(outer).parameters
        direct = inspect.signature(outer, follow_wrapped=False).parameters.values()
        named = [p.name for p in direct if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        assert set(named[1:]) <= set(inner), place  # the first one is self


@pytest.mark.parametrize("cls", [IPPO, MAPPO, MADDPG, MATD3])
@pytest.mark.parametrize("ids", [["a_0", "b_0"], [0, 1]], ids=["names", "numbers"])
def test_teams_act_by_keyword_as_by_position(cls: Any, ids: list[Any]) -> None:
    rng = np.random.default_rng(0)
    obs = {agent: rng.uniform(-1, 1, (5, 3)).astype(np.float32) for agent in ids}
    results = []
    for by_name in (False, True):
        team = cls([Box(-1, 1, (3,))] * 2, [Discrete(3)] * 2, agent_ids=[*map(str, ids)], net_config=NET, seed=0)
        results.append(team.get_action(obs=obs, infos=None) if by_name else team.get_action(obs, None))
    for first, second in zip(*results, strict=True):
        assert list(first) == ids
        for agent in ids:
            np.testing.assert_array_equal(first[agent], second[agent])


def test_functions_behind_methods_of_teams_take_their_names() -> None:
    team = IPPO([Box(-1, 1, (3,))] * 2, [Discrete(3)] * 2, agent_ids=["0", "1"], net_config=NET, seed=0)
    assert team.environment_actions(actions={0: 1, 1: 2}) == {0: 1, 1: 2}
    obs = {agent: np.zeros(3, np.float32) for agent in (0, 1)}
    actions = team.predicted_actions(obs=obs, mask=None, policy=team._greedy, episode_start=None)
    assert list(actions) == [0, 1]
