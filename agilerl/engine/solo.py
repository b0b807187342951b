"""An agent alone is a cohort of one: its own [1, D] row, rebuilt when the user has changed anything behind our back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from agilerl.engine.rows.optim import RULES, rule_of
from agilerl.engine.rows.rows_engine import RowsEngine, dense_parts
from agilerl.modules.base import EvolvableModule

if TYPE_CHECKING:
    from agilerl.engine.protocol import Trainable


class SoloRows:
    """The row of one agent that learns by itself, and what tells that it is still the agent's."""

    def __init__(self, agent: Trainable) -> None:
        binding = agent.binding()
        if binding is None:
            raise ValueError("this agent does not stack")
        rates = {o.name: o.lr for o in agent.registry.optimizers}
        self.engine = RowsEngine([binding], rates, agent.evaluation_networks())
        self._hyperparameters: dict[str, float] = {}
        self._networks = [(name, getattr(agent, name)) for name in agent.registry.all_registered()]
        self._parameters = [p for _, network in self._networks for p in network.parameters()]
        self._pointers = [p.data_ptr() for p in self._parameters]
        self.engine.write_steps()
        self._states: list[tuple[torch.optim.Optimizer, nn.Parameter, str, int]] = []
        self._counters: dict[str, list[Tensor]] = {o.name: [] for o in binding.optimizers}
        for optimizer in binding.optimizers:
            moment = next(name for name in RULES[optimizer.rule.kind].moments if name is not None)
            for parameter in (p for g in optimizer.optimizer.param_groups for p in g["params"]):
                state = optimizer.optimizer.state[parameter]
                self._states.append((optimizer.optimizer, parameter, moment, state[moment].data_ptr()))
                self._counters[optimizer.name].append(state["step"])
        self._taken = {name: float(steps[0]) for name, steps in self._counters.items()}
        self._bindings = binding

    def is_current(self, agent: Trainable) -> bool:
        """Whether networks, parameters, moments and step counts are the ones that the row was bound to."""
        if any(getattr(agent, name) is not network for name, network in self._networks):
            return False
        present = [p for _, network in self._networks for p in network.parameters()]
        if len(present) != len(self._parameters):
            return False
        if any(
            p is not q or p.data_ptr() != at for p, q, at in zip(present, self._parameters, self._pointers, strict=True)
        ):
            return False
        if any(
            not isinstance(network, EvolvableModule) or dense_parts(network) is None for _, network in self._networks
        ):
            return False
        for entry, bound in self._optimizers(agent):
            optimizer = getattr(agent, entry.name).optimizer
            if optimizer is not bound.optimizer or rule_of(optimizer) != bound.rule:
                return False
        for optimizer, parameter, moment, pointer in self._states:
            value = optimizer.state.get(parameter, {}).get(moment)
            if value is None or value.data_ptr() != pointer:
                return False
        for _, bound in self._optimizers(agent):
            parameter = bound.optimizer.param_groups[0]["params"][0]
            if float(bound.optimizer.state[parameter]["step"]) != self._taken[bound.name]:
                return False
        return True

    def _optimizers(self, agent: Trainable):  # type: ignore[no-untyped-def]
        return zip(agent.registry.optimizers, self._bindings.optimizers, strict=True)

    def refresh(self, agent: Trainable) -> RowsEngine:
        """The engine with the agent's live hyperparameters."""
        values = agent.update_hyperparameters()
        if values != self._hyperparameters:
            self.engine.set_hyperparameters({name: [value] for name, value in values.items()})
            self._hyperparameters = values
        return self.engine

    def stepped(self) -> None:
        """Tell the torch optimisers' own counters how many steps each of them took."""
        for name, taken in self.engine.steps_taken().items():
            if taken != self._taken[name]:
                torch._foreach_add_(self._counters[name], taken - self._taken[name])
                self._taken[name] = taken
