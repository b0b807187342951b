"""Networks: an encoder for the observations and a head for the outputs. Imports are lazy."""

from typing import TYPE_CHECKING

from agilerl.core.lazy import attributes

if TYPE_CHECKING:
    from agilerl.networks.actors import DeterministicActor, StochasticActor
    from agilerl.networks.base import EvolvableNetwork
    from agilerl.networks.mixing import MixingNetwork
    from agilerl.networks.q_networks import ContinuousQNetwork, QNetwork, RainbowQNetwork
    from agilerl.networks.quantiles import QuantileCritic, QuantileQNetwork
    from agilerl.networks.value_networks import Temperature, ValueNetwork

__all__ = [
    "ContinuousQNetwork", "DeterministicActor", "EvolvableNetwork", "MixingNetwork", "QNetwork", "QuantileCritic",
    "QuantileQNetwork", "RainbowQNetwork", "StochasticActor", "Temperature", "ValueNetwork",
]  # fmt: skip
_HOMES = {
    "actors": "DeterministicActor StochasticActor",
    "base": "EvolvableNetwork",
    "mixing": "MixingNetwork",
    "q_networks": "ContinuousQNetwork QNetwork RainbowQNetwork",
    "quantiles": "QuantileCritic QuantileQNetwork",
    "value_networks": "Temperature ValueNetwork",
}
__getattr__, __dir__ = attributes(__name__, _HOMES)
