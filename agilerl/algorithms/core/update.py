"""How an update runs: the protocol that an algorithm's `update` is written against, and its plain-torch engine.

`storage.rows_engine.RowsEngine` runs the same update over the rows of a whole cohort; `ModuleEngine` runs it with one
agent's own modules and optimisers. The second is the reference, and the path for what does not stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from agilerl.algorithms.core.base import EvolvableAlgorithm

Network = Callable[[Tensor], Tensor]


class UpdateEngine(Protocol):
    """What an update may use. Tensors carry a leading member axis [N, ...] over rows, none with plain modules."""

    hp: Mapping[str, Tensor]

    def network(self, name: str) -> Network:
        """The evaluation network, differentiable; takes the observations of the batch."""

    def frozen(self, name: str) -> Network:
        """The evaluation network as a constant."""

    def target(self, name: str) -> Network:
        """The target network that shadows `name`, as a constant."""

    def forward(self, name: str, x: Tensor) -> Any:
        """One pass through the evaluation network for a loss that knows its own gradient: no autograd over rows.

        Returns:
            An object whose `value` [..., B, out] is a constant; `descend` takes it back.
        """

    def descend(self, optimizer: str, ran: Any, grad: Tensor, max_norm: Tensor | None = None) -> None:
        """One step of `optimizer`, given the loss's gradient at the outputs of `ran`."""

    def minimise(self, optimizer: str, loss: Tensor, max_norm: Tensor | None = None) -> None:
        """One step of `optimizer` on `loss` ([N] or scalar) by autograd, gradients clipped to `max_norm` if given."""

    def track(self, name: str, tau: Tensor) -> None:
        """Soft update of the target of `name`: θ⁻ ← τ·θ + (1 − τ)·θ⁻."""


@dataclass(frozen=True)
class TransitionBatch:
    """Sampled transitions; every tensor may carry a leading member axis.

    Attributes:
        obs, next_obs: [..., B, ...] as the engine's networks take them: preprocessed [..., B, in] over rows, plain
            observations with modules (a module preprocesses by itself).
        action: [..., B] int64 (or [..., B, A] float).
        reward, done: [..., B]; `done` means terminated.
        weight: [..., B] 1/B_i in the first B_i rows of a member, 0 beyond.
        next_mask: [..., B, A] bool, the actions that are legal in `next_obs`; None where all are.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    done: Tensor
    weight: Tensor
    next_mask: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> TransitionBatch:
        """The batch with `change` applied to every tensor that is there."""
        given: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        changed: dict[str, Any] = {k: v if v is None else change(v) for k, v in given.items()}
        return TransitionBatch(**changed)


@dataclass(frozen=True)
class ModulePass:
    """A pass through a module; `output` keeps the autograd graph."""

    output: Tensor

    @property
    def value(self) -> Tensor:
        """The output as a constant."""
        return self.output.detach()


class ModuleEngine:
    """An `UpdateEngine` over one agent's own modules: plain `torch.nn` and `torch.optim`."""

    def __init__(self, agent: EvolvableAlgorithm) -> None:
        self._agent = agent
        first = next(iter(agent.policy_module().parameters()))
        self.hp: Mapping[str, Tensor] = {
            name: torch.tensor(value, dtype=first.dtype, device=first.device)
            for name, value in agent.update_hyperparameters().items()
        }
        self._targets = {
            str(g.eval_network): str(g.shared_networks[0]) for g in agent.registry.groups if g.shared_networks
        }

    def _module(self, name: str) -> nn.Module:
        module: nn.Module = getattr(self._agent, name)
        return module

    def network(self, name: str) -> Network:
        return self._module(name)

    def frozen(self, name: str) -> Network:
        return torch.no_grad()(self._module(name))

    def target(self, name: str) -> Network:
        return torch.no_grad()(self._module(self._targets[name]))

    def forward(self, name: str, x: Tensor) -> ModulePass:
        return ModulePass(self._module(name)(x))

    def descend(self, optimizer: str, ran: ModulePass, grad: Tensor, max_norm: Tensor | None = None) -> None:
        getattr(self._agent, optimizer).zero_grad()
        ran.output.backward(grad)  # type: ignore[no-untyped-call]
        self._move(optimizer, max_norm)

    def minimise(self, optimizer: str, loss: Tensor, max_norm: Tensor | None = None) -> None:
        getattr(self._agent, optimizer).zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._move(optimizer, max_norm)

    def _move(self, optimizer: str, max_norm: Tensor | None) -> None:
        wrapper: Any = getattr(self._agent, optimizer)
        if max_norm is not None:
            for module in wrapper.networks:
                torch.nn.utils.clip_grad_norm_(module.parameters(), float(max_norm))
        wrapper.step()

    def track(self, name: str, tau: Tensor) -> None:
        soft_update(self._module(name), self._module(self._targets[name]), tau)


def soft_update(network: nn.Module, target: nn.Module, tau: Tensor | float) -> None:
    """θ⁻ ← τ·θ + (1 − τ)·θ⁻ over all parameters, in place (Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1)."""
    with torch.no_grad():
        for source, shadow in zip(network.parameters(), target.parameters(), strict=True):
            shadow.lerp_(source, tau if isinstance(tau, Tensor) else torch.tensor(tau, dtype=shadow.dtype))
