"""Reference engine: updates with one agent's modules and optimisers, plain `torch.nn` and `torch.optim`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from agilerl.core import foreign
from agilerl.core.backward import with_precomputed_gradient
from agilerl.core.tree import Tree, map_leaves
from agilerl.engine.protocol import Network, Trainable
from agilerl.modules.layers import set_noise
from agilerl.modules.paths import resolve
from agilerl.networks.base import EvolvableNetwork
from agilerl.ranks import ONE, Ranks


class ModuleEngine:
    """`UpdateEngine` over one agent's modules: plain `torch.nn` and `torch.optim`.

    Networks and optimisers are looked up on the agent at every call; `refresh` reloads everything else.
    """

    hp: Mapping[str, Tensor]

    def __init__(self, agent: Trainable, ranks: Ranks = ONE) -> None:
        self._agent, self.ranks = agent, ranks
        self._like: tuple[torch.dtype, torch.device] | None = None
        self._rates: dict[str, float] = {}
        self._features: dict[tuple[int, int], tuple[Any, Tensor]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reload the agent's hyperparameters and network names; drop cached features."""
        agent, first = self._agent, next(iter(self._agent.policy_module().parameters()))
        rates, like = agent.update_hyperparameters(), (first.dtype, first.device)
        if rates != self._rates or like != self._like:
            self.hp = {name: torch.tensor(x, dtype=like[0], device=like[1]) for name, x in rates.items()}
            self._rates, self._like = rates, like
        self._features.clear()
        self._encoder_sources = set(agent.registry.encoder_sources.values())
        self._targets = {
            str(g.eval_network): str(g.shared_networks[0]) for g in agent.registry.groups if g.shared_networks
        }

    def _module(self, name: str) -> nn.Module:
        module: nn.Module = resolve(self._agent, name)
        return module

    def _raw(self, name: str) -> Network:
        """Like `raw_output`; features shared by several networks are cached until their encoder is updated."""
        module = self._module(name)
        if not (isinstance(module, EvolvableNetwork) and module.encoder_source is not None and module.takes_features):
            return raw_output(module)
        reader: Any = module

        def run(obs: Tree, *rest: Any) -> Tensor:
            key = (id(reader.encoder_source), id(obs))
            if key not in self._features:
                self._features[key] = (obs, reader.shared_features(obs))  # keeps `obs` alive, so that its id is unique
            output: Tensor = reader.from_features(self._features[key][1], *rest)
            return output

        return run

    def network(self, name: str) -> Network:
        return self._raw(name)

    def through(self, name: str) -> Network:
        module, raw = self._module(name), self._raw(name)

        def run(*inputs: Any) -> Tensor:
            trained = [p for p in module.parameters() if p.requires_grad]
            for parameter in trained:
                parameter.requires_grad_(False)
            try:
                return raw(*inputs)
            finally:
                for parameter in trained:
                    parameter.requires_grad_(True)

        return run

    def through_each(self, names: tuple[str, ...]) -> Callable[[Sequence[tuple[Any, ...]]], Tensor]:
        paths = [self.through(name) for name in names]
        return lambda inputs: torch.stack([run(*args) for run, args in zip(paths, inputs, strict=True)])

    def frozen(self, name: str) -> Network:
        return torch.no_grad()(self._raw(name))

    def target(self, name: str) -> Network:
        return torch.no_grad()(self._raw(self._targets[name]))

    def frozen_and_target(self, name: str) -> Callable[..., tuple[Tensor, Tensor]]:
        value, target = self.frozen(name), self.target(name)
        return lambda *inputs: (value(*inputs), target(*inputs))

    def networks(self, names: tuple[str, ...]) -> Network:
        calls = [self.network(name) for name in names]
        return lambda *inputs: torch.stack([run(*inputs) for run in calls])

    def targets(self, names: tuple[str, ...]) -> Network:
        calls = [self.target(name) for name in names]
        return lambda *inputs: torch.stack([run(*inputs) for run in calls])

    def forward(self, name: str, x: Tree) -> tuple[Tensor, Tensor]:
        output = self._raw(name)(x)  # the output's graph represents the pass
        return output.detach(), output

    def descend(self, optimizer: str, ran: Tensor, grad: Tensor, max_norm: Tensor | None = None) -> None:
        resolve(self._agent, optimizer).zero_grad()
        with_precomputed_gradient([ran], [grad]).backward()  # type: ignore[no-untyped-call]
        self._move(optimizer, max_norm)

    def descend_all(
        self,
        optimizer: str,
        outputs: Sequence[Tensor],
        grads: Sequence[Tensor],
        max_norm: Tensor | None = None,
        live: Sequence[bool] | None = None,
    ) -> None:
        is_live = live is None or bool(live[0])
        if not is_live and self.ranks.size == 1:
            return
        resolve(self._agent, optimizer).zero_grad()
        with_precomputed_gradient(outputs, grads).backward()  # type: ignore[no-untyped-call]
        self._move(optimizer, max_norm, is_live)

    def minimise(self, optimizer: str | tuple[str, ...], loss: Tensor, max_norm: Tensor | None = None) -> None:
        names = (optimizer,) if isinstance(optimizer, str) else optimizer
        for name in names:
            resolve(self._agent, name).zero_grad()
        loss.sum().backward()  # type: ignore[no-untyped-call]
        for name in names:
            self._move(name, max_norm)

    def _move(self, optimizer: str, max_norm: Tensor | None, is_live: bool = True) -> None:
        wrapper: Any = resolve(self._agent, optimizer)
        if self._encoder_sources & set(wrapper.network_names or ()):
            self._features.clear()
        if self.ranks.size > 1:
            parameters = [p for group in wrapper.optimizer.param_groups for p in group["params"]]
            if not average_gradients(self.ranks, parameters, is_live):
                return
        if max_norm is not None:
            for module in wrapper.networks:
                torch.nn.utils.clip_grad_norm_(module.parameters(), float(max_norm))
        rate, base_rate = self._rates.get(wrapper.lr_name, wrapper.lr), wrapper.lr
        if rate == base_rate:
            wrapper.step()
            return
        wrapper.set_lr(rate)  # a schedule: this step only
        try:
            wrapper.step()
        finally:
            wrapper.set_lr(base_rate)

    def distance(self, name: str) -> Tensor:
        both = zip(self._module(name).parameters(), self._module(self._targets[name]).parameters(), strict=True)
        return torch.stack([(value - target).square().sum() for value, target in both]).sum()

    def track(self, name: str | tuple[str, ...], tau: Tensor) -> None:
        for one in (name,) if isinstance(name, str) else name:
            soft_update(self._module(one), self._module(self._targets[one]), tau)
            if self._targets[one] in self._encoder_sources:
                self._features.clear()

    def set_noise(self, name: str, values: Tensor, target_values: Tensor | None = None) -> None:
        set_noise(self._module(name), values)
        if target_values is not None:
            set_noise(self._module(self._targets[name]), target_values)


def average_gradients(ranks: Ranks, parameters: Sequence[nn.Parameter], is_live: bool = True) -> bool:
    """Average gradients over all ranks in place, in one collective; a missing gradient counts as 0.

    A missing gradient stays missing: whether a parameter is part of a loss does not depend on the rank.

    Returns:
        Whether `is_live` holds on any rank.
    """
    with torch.no_grad():
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flag = torch.full((1,), float(is_live), dtype=grads[0].dtype, device=grads[0].device)
        ranks.mean_([*grads, flag])
    return bool(flag > 0)


def raw_output(module: nn.Module) -> Network:
    """Return the function that engines run: the network's `output`, or the module itself, with hooks, if equivalent.

    Inputs of a custom module are converted to tensors.
    """
    run: Network = foreign.method(module, "output") or module
    if isinstance(module, EvolvableNetwork):
        return module if module.runs_forward else run
    like = next(module.parameters(), None)
    if like is None:
        return run
    return lambda obs, *rest: run(map_leaves(lambda x: as_input(x, like), obs), *rest)


def as_input(x: Tree, like: Tensor) -> Tensor:
    """Convert an array or tensor to a custom module's input: on its device, floating-point values in its dtype."""
    tensor = torch.as_tensor(x)
    return tensor.to(like.device, like.dtype if tensor.is_floating_point() else tensor.dtype)


def soft_update(network: nn.Module, target: nn.Module, tau: Tensor | float) -> None:
    """Soft-update all target parameters in place: θ⁻ ← τ·θ + (1 − τ)·θ⁻.

    Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1.
    """
    with torch.no_grad():
        for source, shadow in zip(network.parameters(), target.parameters(), strict=True):
            shadow.lerp_(source, tau if isinstance(tau, Tensor) else torch.tensor(tau, dtype=shadow.dtype))
