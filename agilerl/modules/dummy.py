"""Any `nn.Module` among evolvable ones, as it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import nn

from agilerl.errors import ConfigError, warn_once
from agilerl.modules.copying import copy_module
from agilerl.modules.evolvable import EvolvableModule


class DummyEvolvable(EvolvableModule):
    """Any `nn.Module` in the place of an evolvable one: its weights can be mutated, its architecture not.

    It has no mutation methods and no activation to change. Its spec names the class of the module and no more: to make
    a network of a spec, `from_spec` needs the module (`module=` or `module_fn=`), because a file must not decide which
    code is imported.

    Args:
        module: the module itself.
        device: where it is put.
        module_fn: makes the module, with `module_kwargs`, where `module` is not given.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        device: str | torch.device = "cpu",
        module_fn: Callable[..., nn.Module] | None = None,
        module_kwargs: Mapping[str, Any] | None = None,
        random_seed: int | None = None,
    ) -> None:
        super().__init__(device, random_seed)
        if (module is None) == (module_fn is None):
            raise ConfigError(f"{type(self).__name__} needs either module or module_fn")
        made = module_fn(**dict(module_kwargs or {})) if module_fn is not None else module
        if not isinstance(made, nn.Module):
            raise TypeError(f"{type(self).__name__} wraps a torch.nn.Module; got {type(made).__name__}")
        self.module = made.to(device)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module."""
        return self.module(*args, **kwargs)

    def change_activation(self, activation: str, output: bool = False) -> None:
        """Changes nothing, and says so once: the activations of an arbitrary module are not known."""
        name = type(self.module).__name__
        warn_once(
            f"activation of {name}",
            f"activation mutation leaves {name} as it is: it is wrapped as it stands. "
            "fix: make it an EvolvableModule with change_activation.",
        )

    def get_init_dict(self) -> dict[str, Any]:
        """The module itself, not a copy, with device and seed."""
        return {"module": self.module, "device": self.device, "random_seed": self.random_seed}

    def spec(self) -> dict[str, Any]:
        """Class of the wrapper and dotted class of the module."""
        kind = type(self.module)
        return {"class": type(self).__name__, "module": f"{kind.__module__}.{kind.__qualname__}"}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], **arguments: Any) -> Self:
        """A wrapper of the module in `arguments`, which has to be of the class in `spec`.

        Raises:
            ConfigError: no module is given, or one of another class.
        """
        if arguments.get("module") is None and arguments.get("module_fn") is None:
            raise ConfigError(
                f"the network is a {spec.get('module')} in a {cls.__name__}: a spec does not hold its code. "
                "fix: make the agent with it, or from_spec(spec, module=...)."
            )
        wrapper = cls(**arguments)
        if wrapper.spec() != dict(spec):
            raise ConfigError(f"this is the spec of {dict(spec)}; got {wrapper.spec()}")
        return wrapper

    def rebuilt(self, spec: Mapping[str, Any], device: str | torch.device) -> Self:
        """A wrapper of a copy of this one's module."""
        return type(self).from_spec(spec, module=copy_module(self.module, {}), device=device)
