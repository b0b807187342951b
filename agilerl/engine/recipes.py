"""Updates as data, for a back end that runs whole updates without the algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TDRecipe:
    """Q-learning with a target network and the squared error (`DQN.update` in torch).

    Attributes:
        network: name of the action values; its shared network is the target. optimizer: name of its optimiser.
        lr, tau: names of the hyperparameters that are the learning rate and the share of the soft target update.
        is_double: whether the evaluation network selects the next action (van Hasselt et al. 2016, arXiv:1509.06461).
    """

    network: str
    optimizer: str
    lr: str = "lr"
    tau: str = "tau"
    is_double: bool = False


def recipe_of(agent: Any) -> TDRecipe | None:
    """Return the agent's recipe; None without one, or if a subclass overrides `update` alone."""
    for base in type(agent).__mro__:
        if "recipe" in vars(base):
            description: TDRecipe | None = agent.recipe()
            return description
        if "update" in vars(base):
            return None
    return None
