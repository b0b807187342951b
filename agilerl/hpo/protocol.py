"""What selection and mutation ask of an agent: they know no algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from agilerl.hpo.operators import HyperparameterConfig
from agilerl.modules.base import EvolvableModule
from agilerl.modules.morph import Transfer


class Selectable(Protocol):
    """What tournament selection needs."""

    @property
    def index(self) -> int:
        """Unique id within the run."""

    @property
    def fitness(self) -> Sequence[float]:
        """Evaluations so far, oldest first."""

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        """An independent copy, with a new index where one is given."""


class Group(Protocol):
    """Attribute names of one evaluation network and of the networks that follow it (targets)."""

    eval_network: Any
    shared_networks: Any
    policy: bool


class OptimizerEntry(Protocol):
    """Attribute names of one optimiser, of what it optimises and of its learning rate."""

    name: str
    networks: Any
    lr: str


class Registry(Protocol):
    """What an agent says about itself."""

    @property
    def groups(self) -> Sequence[Any]:
        """`Group`s; exactly one is the policy."""

    @property
    def optimizers(self) -> Sequence[Any]:
        """`OptimizerEntry`s."""

    @property
    def hp_config(self) -> HyperparameterConfig | None:
        """The hyperparameters that may change."""


class Rebuildable(Protocol):
    """An optimiser whose parameters can be exchanged."""

    def rebuild(self, networks: Mapping[str, EvolvableModule], transfers: Mapping[str, Mapping[str, Transfer]]) -> None:
        """Optimise these networks from now on; moments move as the transfers say, all others stay."""


class Mutable(Protocol):
    """What mutation needs, besides the attributes that the registry names."""

    mut: str | None
    mutation_record: Any

    @property
    def registry(self) -> Registry:
        """Groups, optimisers and hyperparameters."""

    def mutation_hook(self) -> None:
        """Runs what has to follow a change (sharing encoders anew, sizing a buffer)."""

    def probe_observations(self, count: int = 256) -> Any:
        """Up to `count` observations seen lately [B, ...], nested as the space is; None if there are none."""
