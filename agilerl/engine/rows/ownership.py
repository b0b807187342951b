"""What tells that the row of an agent that learns alone is still the agent's, whatever the user did since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from agilerl.engine.parts import is_dense
from agilerl.engine.rows.bindings import MemberBinding
from agilerl.engine.rows.optim import RULES, rule_of
from agilerl.engine.rows.rows_engine import RowsEngine

if TYPE_CHECKING:
    from agilerl.engine.protocol import Trainable


class Ownership:
    """The networks, parameters, moments and step counts that an agent's row was bound to.

    Args:
        agent: whose row `engine` has just adopted; it is not kept. binding: of the row.
    """

    def __init__(self, agent: Trainable, binding: MemberBinding, engine: RowsEngine) -> None:
        self._binding, self._engine = binding, engine
        self._networks = [getattr(agent, name) for name in agent.registry.all_registered()]
        self._parameters = [p for network in self._networks for p in network.parameters()]
        self._pointers = [p.data_ptr() for p in self._parameters]
        engine.write_steps()
        self._states: list[tuple[torch.optim.Optimizer, nn.Parameter, str, int]] = []
        self._counters: dict[str, list[Tensor]] = {o.name: [] for o in binding.optimizers}
        for optimizer in binding.optimizers:
            moment = next(name for name in RULES[optimizer.rule.kind].moments if name is not None)
            for parameter in (p for g in optimizer.optimizer.param_groups for p in g["params"]):
                state = optimizer.optimizer.state[parameter]
                self._states.append((optimizer.optimizer, parameter, moment, state[moment].data_ptr()))
                self._counters[optimizer.name].append(state["step"])
        self._taken = {name: float(steps[0]) for name, steps in self._counters.items()}

    def holds(self, agent: Trainable) -> bool:
        """Whether everything is as it was bound, of the networks that it was bound to."""
        present = [p for network in self._networks for p in network.parameters()]
        if len(present) != len(self._parameters):
            return False
        if any(
            p is not q or p.data_ptr() != at for p, q, at in zip(present, self._parameters, self._pointers, strict=True)
        ):
            return False
        if not all(is_dense(network) for network in self._networks):
            return False
        bound = self._binding.optimizers
        live = [getattr(agent, entry.name).optimizer for entry in agent.registry.optimizers]
        if any(o is not b.optimizer or rule_of(o) != b.rule for o, b in zip(live, bound, strict=True)):
            return False
        for optimizer, parameter, moment, pointer in self._states:
            value = optimizer.state.get(parameter, {}).get(moment)
            if value is None or value.data_ptr() != pointer:
                return False
        firsts = [(o, o.param_groups[0]["params"][0]) for o in live]
        return all(float(o.state[p]["step"]) == self._taken[b.name] for (o, p), b in zip(firsts, bound, strict=True))

    def settle(self) -> None:
        """Tell the torch optimisers' own counters how many steps each of them took."""
        for name, taken in self._engine.steps_taken().items():
            if taken != self._taken[name]:
                torch._foreach_add_(self._counters[name], taken - self._taken[name])
                self._taken[name] = taken
