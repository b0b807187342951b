"""The algorithms, and the table that finds them by name."""

from __future__ import annotations

from agilerl.algorithms.core.base import EvolvableAlgorithm
from agilerl.algorithms.core.single_agent import RLAlgorithm
from agilerl.algorithms.dqn import DQN
from agilerl.config.algorithms import canonical_algorithm

__all__ = ["ALGORITHMS", "DQN", "EvolvableAlgorithm", "RLAlgorithm", "find_algorithm"]

ALGORITHMS: dict[str, type[RLAlgorithm]] = {"DQN": DQN}


def find_algorithm(name: str) -> type[RLAlgorithm]:
    """The algorithm class; case, spaces, dashes and underscores in `name` do not matter.

    Raises:
        NotAvailableYetError: a published name that this version does not have yet.
        AlgorithmError: an unknown name, with the nearest known one.
    """
    return ALGORITHMS[canonical_algorithm(str(name))]
