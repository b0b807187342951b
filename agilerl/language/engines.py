"""Engines over adapters: members sequentially through PEFT, or all members in one pass of their base model.

Both run the same `update`. The first is the reference, and the fallback for members that cannot be stacked; the second
holds the members' parameters, gradients and moments as rows of flat arrays, as `rows` does for dense networks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from agilerl.core.transfer import step_tensor
from agilerl.engine.modules import ModuleEngine
from agilerl.engine.rows.kernels import RULES, Columns, OptimizerRule, clip_rows, rule_of, step_live
from agilerl.errors import ConfigError
from agilerl.language.base import BaseModel, Forward
from agilerl.language.lora import stacked
from agilerl.language.networks import HEAD, AdapterNetwork, values_of
from agilerl.language.scoring import Texts, hidden_states, log_probs
from agilerl.modules.paths import resolve
from agilerl.ranks import ONE, Ranks


class AdapterEngine(Protocol):
    """Engine interface for updates of language policies. Tensors have a leading member axis if members are stacked.

    Attributes:
        hp: name -> [N, 1] tensor, or a scalar.
        ranks: processes that train the same members; the gradients of a step are the mean of theirs.
    """

    ranks: Ranks

    @property
    def hp(self) -> Mapping[str, Tensor]: ...

    def network(self, name: str) -> Callable[..., Tensor]:
        """Return a function: texts [..., R, P + T] -> log-probabilities [..., R, T] or values, differentiable in the
        adapter."""

    def target(self, name: str) -> Callable[..., Tensor]:
        """Return the frozen network that shadows `name`, as a constant."""

    def accumulate(self, loss: Tensor) -> None:
        """Accumulate the gradient of a part of the loss, [N] or a scalar."""

    def step(self, optimizer: str, max_norm: Tensor | None = None, live: Sequence[bool] | None = None) -> None:
        """Step the members that are `live` on the gradients accumulated since the last step, clipped to `max_norm`."""


class SequentialAdapters:
    """`AdapterEngine` over one agent's networks and torch optimisers; PEFT runs the adapter."""

    def __init__(self, agent: Any, ranks: Ranks = ONE) -> None:
        self.members, self.agents, self.ranks = 1, [agent], ranks
        self._engine = ModuleEngine(agent)
        self._agent = agent

    @property
    def hp(self) -> Mapping[str, Tensor]:
        return self._engine.hp

    def refresh(self) -> None:
        """Reload the agent's hyperparameters."""
        self._engine.refresh()

    def network(self, name: str) -> Callable[..., Tensor]:
        adapter: AdapterNetwork = resolve(self._agent, name)
        return adapter

    def target(self, name: str) -> Callable[..., Tensor]:
        group = next(g for g in self._agent.registry.groups if str(g.eval_network) == name)
        frozen: AdapterNetwork = resolve(self._agent, str(group.shared_networks[0]))
        return torch.no_grad()(frozen)

    def accumulate(self, loss: Tensor) -> None:
        loss.sum().backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: str, max_norm: Tensor | None = None, live: Sequence[bool] | None = None) -> None:
        wrapper = resolve(self._agent, optimizer)
        if self.ranks.size > 1:
            parameters = [p for module in wrapper.networks for p in module.parameters()]
            for p in parameters:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            self.ranks.mean_([p.grad for p in parameters if p.grad is not None])
        self._engine._move(optimizer, max_norm)
        wrapper.zero_grad()

    @contextlib.contextmanager
    def acting(self, name: str) -> Iterator[Forward]:
        """Yield the decoder with the policy, without gradients."""
        with torch.no_grad(), resolve(self._agent, name).running() as forward:
            yield forward

    def given(self, texts: Texts) -> Texts:
        """Convert texts [1, R, ...] of the member to network inputs."""
        return texts.flat()

    def inner(self, value: Tensor) -> Tensor:
        """Remove the member axis of a tensor [1, ...]."""
        return value[0]

    def outer(self, value: Tensor) -> Tensor:
        """Add a member axis to the result of an update."""
        return value.unsqueeze(0)

    def is_finite(self) -> np.ndarray:
        """Return [1] bool: whether the weights are finite."""
        weights = [p.detach().sum() for n in self._agent.evaluation_networks().values() for p in n.parameters()]
        return np.array([bool(torch.stack(weights).isfinite().all())])

    def release(self) -> None:
        """No-op: nothing was adopted."""


@dataclass
class _Rows:
    """Adapters of one network of N members, as flat rows.

    Attributes:
        leaves: name -> [N, ...] leaf tensor over the rows' values.
    """

    networks: list[AdapterNetwork]
    leaves: dict[str, Tensor]
    value: Tensor
    grad: Tensor

    @classmethod
    def of(cls, networks: list[AdapterNetwork], is_trained: bool) -> _Rows:
        shapes = {name: p.shape for name, p in networks[0].tensors().items()}
        size, first = sum(s.numel() for s in shapes.values()), next(iter(networks[0].tensors().values()))
        value = torch.empty(len(networks), size, dtype=first.dtype, device=first.device)
        grad = torch.zeros_like(value) if is_trained else torch.empty(0)
        leaves, at = {}, 0
        for name, shape in shapes.items():
            columns = slice(at, at + shape.numel())
            for row, network in enumerate(networks):
                value[row, columns] = network.tensors()[name].detach().reshape(-1)
            leaf = value[:, columns].view(len(networks), *shape)
            leaves[name] = leaf.detach().requires_grad_(True) if is_trained else leaf
            at += shape.numel()
        return cls(networks, leaves, value, grad)

    def adapter(self) -> dict[str, Tensor]:
        """Return saved name -> [N, ...]."""
        return {name.replace("/", "."): leaf for name, leaf in self.leaves.items() if name != HEAD}

    def gather_gradients(self) -> None:
        """Move the leaves' gradients into the rows' gradients."""
        at = 0
        for leaf in self.leaves.values():
            columns = self.grad[:, at : at + leaf[0].numel()]
            if leaf.grad is None:
                columns.zero_()
            else:
                columns.copy_(leaf.grad.reshape(len(leaf), -1))
            leaf.grad = None
            at += leaf[0].numel()

    def split(self, flat: Tensor, row: int) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, part of a flat row in the parameter's shape)."""
        at = 0
        for name, p in self.networks[row].tensors().items():
            yield name, flat[row, at : at + p.numel()].view_as(p)
            at += p.numel()


class StackedAdapters:
    """`AdapterEngine` over N members with plain LoRA adapters of one configuration on one base model."""

    def __init__(self, agents: Sequence[Any], ranks: Ranks = ONE) -> None:
        self.agents, self.members, self.ranks = list(agents), len(agents), ranks
        lead = self.agents[0]
        groups = lead.registry.groups
        names = [str(g.eval_network) for g in groups]
        self._rows = {name: _Rows.of([resolve(a, name) for a in self.agents], True) for name in names}
        self._targets = {
            str(g.eval_network): _Rows.of([resolve(a, str(g.shared_networks[0])) for a in self.agents], False)
            for g in groups
            if g.shared_networks
        }
        self._base: BaseModel = resolve(lead, names[0]).base
        self._optimizers = {o.name: self._adopt(o) for o in lead.registry.optimizers}
        self._rates = {o.name: o.lr for o in lead.registry.optimizers}
        self.refresh()

    def _adopt(self, config: Any) -> tuple[str, Any, Columns]:
        """Return network name, rule and columns of an optimiser of one network, with the members' moments."""
        (name,) = config.networks
        rows = self._rows[name]
        wrappers = [config.wrapper(agent) for agent in self.agents]
        rule = rule_of(wrappers[0].optimizer)
        assert rule is not None
        first, second = torch.zeros_like(rows.value), torch.zeros_like(rows.value)
        step = torch.zeros(self.members, 1, dtype=torch.float64, device=rows.value.device)
        for row, wrapper in enumerate(wrappers):
            for which, flat in zip(RULES[rule.kind].moments, (first, second), strict=True):
                if which is None:
                    continue
                for key, part in rows.split(flat, row):
                    state = wrapper.optimizer.state.get(rows.networks[row].tensors()[key], {})
                    if which in state:
                        part.copy_(state[which])
            step_counts = [s["step"] for s in wrapper.optimizer.state.values() if "step" in s]
            step[row] = float(step_counts[0]) if step_counts else 0.0
        return name, rule, Columns(rows.value, rows.grad, first, second, step)

    def refresh(self) -> None:
        """Reload the members' hyperparameters."""
        like = next(iter(self._rows.values())).value
        values = [agent.update_hyperparameters() for agent in self.agents]
        self.hp = {name: like.new_tensor([[member_values[name]] for member_values in values]) for name in values[0]}

    # -- running -----------------------------------------------------------------------------------------------------

    def network(self, name: str) -> Callable[..., Tensor]:
        return self._run(self._rows[name])

    def target(self, name: str) -> Callable[..., Tensor]:
        return torch.no_grad()(self._run(self._targets[name]))

    def _run(self, rows: _Rows) -> Callable[..., Tensor]:
        slot = rows.networks[0].slot

        def run(texts: Texts, temperature: object = 1.0) -> Tensor:
            flat, shape = texts.flat(), texts.completion_mask.shape
            rates = torch.as_tensor(temperature, device=flat.tokens.device)
            if rates.dim():  # [N, 1]
                rates = rates.expand(shape[0], shape[1]).reshape(-1)
            with stacked(self._base, slot, rows.adapter()) as forward:
                hidden = hidden_states(forward, flat, shape[0])
            if HEAD in rows.leaves:
                return values_of(hidden, rows.leaves[HEAD]).view(shape)
            tokens = flat.tokens[..., flat.prompt :]
            logp = log_probs(hidden, self._base.head, tokens, rates, self._base.head_bias)
            return logp.view(shape)

        return run

    def accumulate(self, loss: Tensor) -> None:
        loss.sum().backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: str, max_norm: Tensor | None = None, live: Sequence[bool] | None = None) -> None:
        name, rule, columns = self._optimizers[optimizer]
        self._rows[name].gather_gradients()
        if self.ranks.size > 1:
            self.ranks.mean_([columns.grad])
        if max_norm is not None:
            clip_rows(columns.grad, max_norm.expand(self.members, 1))
        with torch.no_grad():
            step_live(columns, self.hp[self._rates[optimizer]], rule, live)

    @contextlib.contextmanager
    def acting(self, name: str) -> Iterator[Forward]:
        """Yield the decoder with the members' policies, for rows ordered by member, without gradients."""
        rows = self._rows[name]
        constant = {key: leaf.detach() for key, leaf in rows.adapter().items()}
        with torch.no_grad(), stacked(self._base, rows.networks[0].slot, constant) as forward:
            yield forward

    def given(self, texts: Texts) -> Texts:
        """Return texts [N, R, ...] unchanged, as the networks take them."""
        return texts

    def inner(self, value: Tensor) -> Tensor:
        """Return a tensor [N, ...] unchanged."""
        return value

    outer = inner

    def is_finite(self) -> np.ndarray:
        """Return [N] bool: members whose weights are finite."""
        flags = [rows.value.detach().sum(1).isfinite() for rows in self._rows.values()]
        return torch.stack(flags).all(0).cpu().numpy()

    @torch.no_grad()
    def release(self) -> None:
        """Copy every row back into its member's parameters and moments."""
        for rows in self._rows.values():
            for row, network in enumerate(rows.networks):
                for name, part in rows.split(rows.value, row):
                    network.tensors()[name].copy_(part)
        for optimizer, (name, rule, columns) in self._optimizers.items():
            rows = self._rows[name]
            for row, agent in enumerate(self.agents):
                if float(columns.step[row]) > 0:
                    self._write_moments(resolve(agent, optimizer).optimizer, rows, row, rule, columns)

    def _write_moments(
        self, optimizer: Optimizer, rows: _Rows, row: int, rule: OptimizerRule, columns: Columns
    ) -> None:
        tensors = rows.networks[row].tensors()
        for which, flat in zip(RULES[rule.kind].moments, (columns.first, columns.second), strict=True):
            if which is None:
                continue
            for key, part in rows.split(flat, row):
                state = optimizer.state[tensors[key]]
                state[which] = part.clone()
                count = float(columns.step[row])
                state["step"] = step_tensor(count, tensors[key], optimizer.param_groups[0])


def why_not_stacked(agents: Sequence[Any]) -> str | None:
    """Return why these members cannot be stacked; None if they can."""
    for agent in agents:
        for name, network in agent.evaluation_networks().items():
            if not (isinstance(network, AdapterNetwork) and network.stacks):
                return f"agent {agent.index}'s {name} is more than plain LoRA"
        for config in agent.registry.optimizers:
            if rule_of(config.wrapper(agent).optimizer) is None or len(config.networks) != 1:
                return f"agent {agent.index}'s {config.name} has no rule for all members at once"
    return None


def _key(agent: Any) -> tuple[Any, ...]:
    """Key shared by members that can be stacked."""
    networks = [(id(n.base), n.slot.name) for n in agent.evaluation_networks().values()]
    rules = [rule_of(config.wrapper(agent).optimizer) for config in agent.registry.optimizers]
    return (*networks, *rules, *agent.stacking())


def engines_for(
    agents: Sequence[Any], wanted: str = "auto", ranks: Ranks = ONE
) -> tuple[list[SequentialAdapters | StackedAdapters], str, str]:
    """Return (engines, name, reason): "fused" with one engine per form of adapters and batches, else one per member.

    Raises:
        ConfigError: "fused" is requested for members that do not stack.
    """
    name, why = choose_adapters(agents, wanted)
    if name == "sequential":
        return [SequentialAdapters(agent, ranks) for agent in agents], name, why
    alike: dict[Any, list[Any]] = {}
    for agent in agents:
        alike.setdefault(_key(agent), []).append(agent)
    return [StackedAdapters(members, ranks) for members in alike.values()], name, why


def choose_adapters(agents: Sequence[Any], wanted: str = "auto") -> tuple[str, str]:
    """Return (name, reason) of `engines_for`, with the same errors, without creating engines."""
    why = why_not_stacked(agents)
    if wanted == "fused" and why is not None:
        raise ConfigError(f"learner='fused' is not possible: {why}. fix: learner='auto'")
    if wanted == "sequential" or why is not None:
        return "sequential", why or "asked for"
    return "fused", "every adapter is plain LoRA on one base"
