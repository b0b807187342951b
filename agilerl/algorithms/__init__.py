"""The algorithms, and the table that finds them by name."""

from __future__ import annotations

from agilerl.algorithms.core.base import EvolvableAlgorithm
from agilerl.algorithms.core.single_agent import RLAlgorithm
from agilerl.algorithms.ddpg import DDPG
from agilerl.algorithms.dqn import DQN
from agilerl.algorithms.dqn_rainbow import RainbowDQN
from agilerl.algorithms.ppo import PPO
from agilerl.algorithms.sac import SAC
from agilerl.algorithms.td3 import TD3
from agilerl.config.algorithms import CLASSES, canonical_algorithm
from agilerl.errors import AlgorithmError

__all__ = [
    "ALGORITHMS",
    "DDPG",
    "DQN",
    "PPO",
    "SAC",
    "TD3",
    "EvolvableAlgorithm",
    "RLAlgorithm",
    "RainbowDQN",
    "find_algorithm",
]

ALGORITHMS: dict[str, type[RLAlgorithm]] = {
    "DDPG": DDPG,
    "DQN": DQN,
    "PPO": PPO,
    "RainbowDQN": RainbowDQN,
    "SAC": SAC,
    "TD3": TD3,
}


def find_algorithm(name: str) -> type[RLAlgorithm]:
    """The algorithm class; case, spaces, dashes and underscores in `name` do not matter.

    Raises:
        NotAvailableYetError: a published name that this version does not have yet.
        AlgorithmError: an unknown name, with the nearest known one; one that was registered without its class.
    """
    known = canonical_algorithm(str(name))
    cls: type[RLAlgorithm] | None = CLASSES.get(known, ALGORITHMS.get(known))
    if cls is None:
        raise AlgorithmError(
            f"the algorithm {known!r} was registered without its class. fix: register_algorithm({known!r}, keys, cls)."
        )
    return cls
