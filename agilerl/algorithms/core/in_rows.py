"""What of an agent can live in rows, and its own row while it learns alone."""

from __future__ import annotations

from torch import nn

from agilerl.algorithms.core.playing import Playing
from agilerl.engine.rows.cohort import MemberBinding, NetworkBinding, OptimizerBinding
from agilerl.engine.rows.optim import rule_of
from agilerl.engine.rows.rows_engine import column_name, dense_parts
from agilerl.engine.solo import SoloRows
from agilerl.modules.base import EvolvableModule
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
        return isinstance(network, EvolvableModule) and dense_parts(network) is not None

    def evaluation_networks(self) -> dict[str, nn.Module]:
        """The evaluation network of every group, by attribute name."""
        return {str(group.eval_network): getattr(self, str(group.eval_network)) for group in self.registry.groups}

    def binding(self) -> MemberBinding | None:
        """What of this agent can live in rows; None where a network or an optimiser does not stack."""
        self.follow_optimizers()
        if not isinstance(self.policy_module(), EvolvableNetwork):
            return None
        networks, optimizers = [], []
        for group in self.registry.groups:
            name = str(group.eval_network)
            parts = dense_parts(getattr(self, name))
            shared = [dense_parts(getattr(self, other)) for other in group.shared_networks or []]
            if parts is None or len(shared) > 1 or any(p is None or p.keys() != parts.keys() for p in shared):
                return None
            target, reads = shared[0] if shared else None, self._reads(name)
            for part, stack in parts.items():
                shadow = target[part] if target else None
                networks.append(NetworkBinding(column_name(name, part), stack, shadow, reads))
        for config in self.registry.optimizers:
            rule = rule_of(getattr(self, config.name).optimizer)
            if rule is None:
                return None
            optimizer = getattr(self, config.name).optimizer
            moved = tuple(n.name for name in config.networks for n in networks if n.name.split("/")[0] == name)
            optimizers.append(OptimizerBinding(config.name, moved, rule, optimizer))
        return MemberBinding(tuple(networks), tuple(optimizers))

    def _reads(self, name: str) -> tuple[str, int] | None:
        """The network whose features `name` reads, and how many of its layers give them."""
        lender = self.registry.lenders.get(name)
        depth = None if lender is None else getattr(self, name).lent_depth()
        return None if lender is None or depth is None else (lender, depth)

    def solo_rows(self) -> SoloRows | None:
        """This agent's own row, bound anew where its networks have changed; None where it does not stack."""
        rows: SoloRows | None = self.__dict__.get("_cohort")
        self.follow_optimizers()
        if rows is None or not rows.is_current(self):  # type: ignore[arg-type]
            rows = SoloRows(self) if self.binding() is not None else None  # type: ignore[arg-type]
            object.__setattr__(self, "_cohort", rows)
        return rows
