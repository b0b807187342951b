"""Overridden methods and constructors that cannot be called as training calls them: named before the first step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from team_games import Meeting

import agilerl
from agilerl.algorithms import DQN, IPPO, MADDPG, PPO, SAC
from agilerl.errors import AlgorithmError, ArgumentError

SHORT: dict[str, Any] = {
    "population": 2, "steps": 200, "evo_steps": 100, "num_envs": 2, "eval_episodes": 1, "eval_steps": 8,
    "confirm_episodes": 0, "out": None, "verbose": False,
}  # fmt: skip
ENVS = {DQN: "CartPole-v1", PPO: "CartPole-v1", SAC: "Pendulum-v1", IPPO: Meeting, MADDPG: Meeting}
OF_REPLAY = {"learning_delay": 8}


def train(base: Any, **methods: Any) -> Any:
    more = {} if base in (PPO, IPPO) else OF_REPLAY
    return agilerl.train(ENVS[base], type("Odd", (base,), methods), **SHORT, **more)


SIGNATURES = {
    "learn": (lambda self: 0.0, "learn(self, experiences)"),
    "update": (lambda self: None, "update(self, engine, batch)"),
    "greedy": (lambda self, outputs: outputs, "greedy(self, outputs, mask)"),
    "test": (lambda self, env: 0.0, "test(self, env, swap_channels=False, max_steps=None, loop=1)"),
    "get_action": (lambda self: 0, "get_action(self, obs)"),
}


@pytest.mark.parametrize("name", SIGNATURES)
@pytest.mark.parametrize("base", ENVS, ids=lambda base: base.__name__)
def test_a_method_that_training_cannot_call_is_named(base: Any, name: str) -> None:
    method, signature = SIGNATURES[name]
    with pytest.raises(AlgorithmError) as caught:
        train(base, **{name: method})
    assert f"Odd.{name} does not take the arguments of training: " in str(caught.value)
    assert str(caught.value).endswith(f"fix: def {signature}.")


@pytest.mark.parametrize("result", [None, torch.tensor(1.0)], ids=["none", "tensor"])
@pytest.mark.parametrize("base", ENVS, ids=lambda base: base.__name__)
def test_an_update_without_a_result_is_named(base: Any, result: Any) -> None:
    kind = type(result).__name__
    with pytest.raises(
        AlgorithmError, match=rf"Odd.update returned an object of {kind}; expected an UpdateResult. fix: "
    ):
        train(base, update=lambda self, engine, batch: result)


def test_overrides_that_take_more_or_anything_train() -> None:
    class Open(DQN):
        def greedy(self, *args: Any) -> np.ndarray:
            return super().greedy(*args)

        def update(self, engine: Any, batch: Any, extra: int = 1) -> Any:
            return super().update(engine, batch)

    agilerl.train("CartPole-v1", Open, **SHORT, **OF_REPLAY)


def test_constructors_of_populations() -> None:
    def keywords(self: Any, **kwargs: Any) -> None:
        DQN.__init__(self, **kwargs)

    def renamed(self: Any, space: Any, actions: Any, **kwargs: Any) -> None:
        DQN.__init__(self, space, actions, **kwargs)

    def closed(self: Any, space: Any, actions: Any) -> None:
        DQN.__init__(self, space, actions)

    for constructor in (keywords, renamed):
        train(DQN, __init__=constructor)
    with pytest.raises(
        ArgumentError, match=r"its constructor takes no index, seed, .* fix: \*\*kwargs in its constructor"
    ):
        train(DQN, __init__=closed)
