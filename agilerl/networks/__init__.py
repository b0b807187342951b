"""Networks: an encoder for the observations and a head for the outputs."""

from agilerl.networks.actors import DeterministicActor, StochasticActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.q_networks import ContinuousQNetwork, QNetwork, RainbowQNetwork
from agilerl.networks.value_networks import Temperature, ValueNetwork

__all__ = [
    "ContinuousQNetwork", "DeterministicActor", "EvolvableNetwork", "QNetwork", "RainbowQNetwork", "StochasticActor",
    "Temperature", "ValueNetwork",
]  # fmt: skip
