"""Which networks of an agent an engine runs."""

from __future__ import annotations

from torch import nn

from agilerl.algorithms.core.playing import Playing
from agilerl.engine.parts import is_dense
from agilerl.networks.base import EvolvableNetwork


class InRows(Playing):
    """An agent whose networks and optimisers can be bound to rows."""

    def policy_network(self) -> EvolvableNetwork:
        """The policy, for algorithms whose policy is a network over an observation space."""
        policy = self.policy_module()
        assert isinstance(policy, EvolvableNetwork)
        return policy

    @staticmethod
    def is_stackable(network: nn.Module) -> bool:
        """Whether the network is still nothing but dense layers, without hooks."""
        return is_dense(network)

    def evaluation_networks(self) -> dict[str, nn.Module]:
        """The evaluation network of every group, by attribute name."""
        return {str(group.eval_network): getattr(self, str(group.eval_network)) for group in self.registry.groups}
