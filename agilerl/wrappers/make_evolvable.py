"""Custom networks: any `nn.Module` in place of an evolvable one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from agilerl.errors import ConfigError, ShapeError
from agilerl.modules.base import DummyEvolvable


class MakeEvolvable(DummyEvolvable):
    """A `torch.nn.Module` that evolves in its weights, not in its architecture.

    For architecture mutations build the network of evolvable modules (`EvolvableMLP`, `EvolvableCNN`, ...) or subclass
    `EvolvableModule`.

    Args:
        network: the module.
        input_tensor: an input [B, ...] for one trial forward pass.
        secondary_input_tensor: a second argument of its forward.
        device: device of the module.

    Raises:
        TypeError: `network` is not a module.
        ShapeError: the network does not run on the inputs.
    """

    def __init__(
        self,
        network: nn.Module | None = None,
        input_tensor: Tensor | None = None,
        secondary_input_tensor: Tensor | None = None,
        device: str | torch.device = "cpu",
        random_seed: int | None = None,
        *,
        module: nn.Module | None = None,
    ) -> None:
        wrapped = network if module is None else module  # specs are rebuilt with `module`
        if wrapped is None:
            raise ConfigError("MakeEvolvable needs a network. fix: MakeEvolvable(network=my_module).")
        super().__init__(device, wrapped, random_seed=random_seed)
        inputs = [x.to(device) for x in (input_tensor, secondary_input_tensor) if x is not None]
        if inputs:
            self._try(inputs)

    def _try(self, inputs: list[Tensor]) -> None:
        before, name = self.module.training, type(self.module).__name__
        self.module.eval()
        try:
            with torch.no_grad():
                output: Any = self.module(*inputs)
        except (RuntimeError, TypeError, ValueError) as error:
            shapes = [tuple(x.shape) for x in inputs]
            raise ShapeError(f"{name} does not run on inputs of shape {shapes}: {error}") from error
        finally:
            self.module.train(before)
        if not isinstance(output, (Tensor, tuple)):
            raise ShapeError(f"{name} must return a tensor or a tuple; got {type(output).__name__}")
