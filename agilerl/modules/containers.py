"""Evolvable modules that hold other modules: under keys, behind a wrapper, or any `nn.Module` as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from agilerl.modules.evolvable import EvolvableModule
from agilerl.modules.morph import prefixed
from agilerl.modules.mutations import MutationType


class ModuleDict(EvolvableModule):
    """Evolvable modules under string keys; their mutations appear as "key.method"."""

    def __init__(self, device: str | torch.device = "cpu", random_seed: int | None = None) -> None:
        super().__init__(device, random_seed)

    def __setitem__(self, key: str, module: nn.Module) -> None:
        self.add_module(key, module)

    def __getitem__(self, key: str) -> nn.Module:
        return cast(nn.Module, self._modules[key])

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def keys(self) -> list[str]:
        """Keys in the order of insertion."""
        return list(self._modules)

    def values(self) -> list[nn.Module]:
        """Modules in the order of insertion."""
        return [self[key] for key in self]

    def items(self) -> list[tuple[str, nn.Module]]:
        """(key, module) in the order of insertion."""
        return [(key, self[key]) for key in self]


class EvolvableWrapper(EvolvableModule):
    """Another evolvable module behind the same mutation names; override `forward` to add to it."""

    def __init__(self, module: EvolvableModule) -> None:
        super().__init__(module.device, module.random_seed)
        self.wrapped = module

    def surface(self) -> dict[str, MutationType]:
        """The wrapped module's names, without a prefix."""
        return self.wrapped.surface()

    def can_apply(self, name: str) -> bool:
        """As the wrapped module says."""
        return self.wrapped.can_apply(name)

    def apply_mutation(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Apply to the wrapped module."""
        result = self.wrapped.apply_mutation(name, *args, **kwargs)
        self.last_mutation_attr = self.wrapped.last_mutation_attr
        self.last_transfer = prefixed("wrapped", self.wrapped.last_transfer)
        self.last_refit = self.wrapped.last_refit
        return result

    def probe(self, inputs: Any) -> None:
        """Passed to the wrapped module."""
        super().probe(inputs)
        self.wrapped.probe(inputs)

    @property
    def activation(self) -> str | None:
        """The wrapped module's."""
        return cast("str | None", getattr(self.wrapped, "activation", None))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapped module."""
        return self.wrapped(*args, **kwargs)
