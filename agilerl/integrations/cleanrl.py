"""Policies of CleanRL as founders: `agilerl.train(env, agents=[load("ppo.cleanrl_model", env)])`."""

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
    """Return an agent with the policy of a `.cleanrl_model`: dqn, ppo, ppo_continuous_action, sac, td3 or ddpg.

    Args:
        path: what `torch.save` wrote: a state dict, or the tuple of those of actor and critics. env: an id, an
            environment, a vector environment or a function that makes one.
        activation: between hidden layers; None is tanh for PPO and ReLU for the others.
        device, seed: of the agent.

    Raises:
        RunError, NotAvailableYetError, ShapeError, AlgorithmError: see `agilerl.algorithms.imported.load.load`.
    """
    return _load(path, env, library="cleanrl", activation=activation, device=device, seed=seed)
