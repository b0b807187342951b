"""Updates as data: what an algorithm hands to a back end that runs whole updates by itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TDRecipe:
    """The update of Q-learning with a target network, and the squared error (`DQN.update` in torch).

    Attributes:
        network: name of the action values; its shared network is the target. optimizer: name of its optimiser.
        lr, tau: names of the hyperparameters that are the learning rate and the share of the soft target update.
        is_double: whether the evaluation network chooses the next action (van Hasselt et al. 2016, arXiv:1509.06461).
    """

    network: str
    optimizer: str
    lr: str = "lr"
    tau: str = "tau"
    is_double: bool = False
