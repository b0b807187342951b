"""Networks: an encoder for the observations and a head for the outputs."""

from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.q_networks import QNetwork

__all__ = ["EvolvableNetwork", "QNetwork"]
