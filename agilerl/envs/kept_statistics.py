"""Wrappers of Gymnasium that keep running statistics where neither checkpoints nor policies reach them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from agilerl.errors import warn_once

BETTER = {
    gym.wrappers.NormalizeObservation: "RSNorm(agent), or normalize_observations=true with PPO",
    gym.wrappers.vector.NormalizeObservation: "RSNorm(agent), or normalize_observations=true with PPO",
    gym.wrappers.NormalizeReward: "normalize_rewards=true in the training section of a manifest",
    gym.wrappers.vector.NormalizeReward: "normalize_rewards=true in the training section of a manifest",
}


def warn_of_statistics(env: Any) -> None:
    """Warn once of every such wrapper around `env`: each copy of the environment learns statistics of its own."""
    while isinstance(env, gym.Wrapper | gym.vector.VectorWrapper):
        if type(env) in BETTER:
            name = type(env).__name__
            warn_once(
                f"statistics of {name}",
                f"{name} keeps its running statistics in the environment: every lane and every evaluation has others, "
                f"and no checkpoint and no saved policy holds them. fix: {BETTER[type(env)]}.",
            )
        env = env.env
