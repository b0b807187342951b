"""Policies of Stable-Baselines3 as founders: `agilerl.train(env, agents=[load("model.zip", env)])`.

Neither Stable-Baselines3 nor what its files hold as pickles is imported.
"""

from __future__ import annotations

import os
from typing import Any

from agilerl.algorithms.imported.load import load as _load
from agilerl.core import foreign


def load(
    path: str | os.PathLike[str],
    env: foreign.EnvLike,
    *,
    activation: str | None = None,
    device: str = "cpu",
    seed: int | None = None,
) -> Any:
    """Return an agent with the policy of a zip of `model.save`: DQN, PPO, A2C (as PPO), SAC, TD3 or DDPG.

    Args:
        path: the zip. env: an id, an environment, a vector environment or a function that makes one.
        activation: between hidden layers; None takes the one that the file names, else tanh for PPO and ReLU for the
            others.
        device, seed: of the agent.

    Raises:
        RunError, NotAvailableYetError, ShapeError, AlgorithmError: see `agilerl.algorithms.imported.load.load`.
    """
    return _load(path, env, library="sb3", activation=activation, device=device, seed=seed)
