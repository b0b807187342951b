"""Several policy networks as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from agilerl.core.tree import Tree
from agilerl.modules.base import EvolvableModule, MutationType
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.q_networks import RainbowQNetwork

ENSEMBLE = "Ensemble"  # class of a specification with those of the members


class Ensemble(EvolvableModule):
    """Mean of the outputs of policy networks of the same spaces: of action values, or of what actors act by.

    The mean has a lower variance than each member: Ensemble DQN of Anschel, Baram and Shimkin 2017, "Averaged-DQN"
    (arXiv:1611.01929); for actors, the evaluation of Lee et al. 2021, "SUNRISE" (arXiv:2007.04938).
    """

    def __init__(self, members: Sequence[EvolvableNetwork]) -> None:
        super().__init__(device=members[0].device, random_seed=members[0].random_seed)
        self.observation_space, self.action_space = members[0].observation_space, members[0].action_space
        for number, member in enumerate(members):
            self.add_module(f"member_{number}", member)

    @property
    def members(self) -> list[EvolvableNetwork]:
        return [cast(EvolvableNetwork, module) for module in self.modules().values()]

    def output(self, obs: Tree) -> Tensor:
        """Return the mean output [..., out] for observations [..., *space]; of distributions, the mean values."""
        called = [m if m.runs_forward or isinstance(m, RainbowQNetwork) else m.output for m in self.members]
        return torch.stack([run(obs) for run in called]).mean(0)

    forward = output

    def spec(self) -> dict[str, Any]:
        return {"class": ENSEMBLE, "members": {name: member.spec() for name, member in self.modules().items()}}

    def surface(self) -> dict[str, MutationType]:
        return {}  # a mutated member would be beside its targets and critics

    def rebuilt(self, spec: Mapping[str, Any], device: str | torch.device, **more: Any) -> Any:
        """Build a network like the first member."""
        return self.members[0].rebuilt(spec, device, **more)

    def describe(self) -> str:
        return " + ".join(member.describe() for member in self.members)


def from_spec(spec: Mapping[str, Any], build: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Build the network of a specification, or an ensemble of those it contains, each by `build`."""
    return Ensemble([*map(build, spec["members"].values())]) if spec.get("class") == ENSEMBLE else build(spec)
