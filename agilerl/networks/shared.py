"""Policy and state value on one encoder, whose weights exist once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from agilerl.modules.lstm import EvolvableLSTM
from agilerl.modules.spec import DenseStack
from agilerl.networks.actors import StochasticActor
from agilerl.networks.stacks import FEATURES, OUTPUT, Run, dense_stacks, module_parts, overrides, recurrent_parts

HEADS = ("head_net", "value_net")


class SharedActorCritic(StochasticActor):
    """π(·|s) and V(s): `output` is the policy's raw output with the value as a last column, [..., raw_size + 1].

    Gradients of both losses add up in the encoder; its mutations are those of policy and value alike. `forward`
    samples from the policy, as of `StochasticActor`, whose arguments it takes.
    """

    def build_head(self, num_outputs: int) -> None:
        """Make both heads."""
        super().build_head(num_outputs)
        self.build_value_head(1)

    def combine(self, parts: Mapping[str, Run], *inputs: Any) -> Any:
        """Raw output and value [..., raw_size + 1] from what runs the parts; see `EvolvableNetwork.combine`."""
        if not isinstance(self.encoder, EvolvableLSTM):
            return _both(parts, parts["encoder"](inputs[0]))
        heads: dict[str, Run] = {**parts, OUTPUT: lambda x: _both(parts, parts[FEATURES](x))}
        return super().combine(heads, *inputs)

    def output(self, obs: Any, hidden_state: Mapping[str, Tensor] | None = None) -> Any:
        """[..., raw_size + 1]; with a hidden state (that, next hidden state), as of every network."""
        x = self.preprocess(obs)
        parts: dict[str, Run] = {name: self.get_submodule(name) for name in HEADS}
        if hidden_state is not None:
            self._recurrent_encoder()
            return self.combine({**module_parts(self), **parts}, x, hidden_state)
        return _both(parts, self._encode(x))

    def forward(self, obs: Any, action_mask: Any = None) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """(action, log probability, entropy) of one sample per row."""
        return self.sampled(self.output(obs)[..., :-1], action_mask)

    def judged(self, obs: Any) -> Tensor:
        """What mutations measure their effect on: the policy's raw output."""
        judged: Tensor = self.output(obs)[..., :-1]
        return judged

    def value(self, obs: Any) -> Tensor:
        """V(s) [..., 1]."""
        value: Tensor = self.output(obs)[..., -1:]
        return value

    def dense_parts(self) -> dict[str, DenseStack] | None:
        """The stacks that `combine` joins; None where one is no plain stack."""
        if overrides(self, SharedActorCritic, "output", "combine"):
            return None
        if isinstance(self.encoder, EvolvableLSTM):
            return recurrent_parts(self, *HEADS)
        return dense_stacks(self, {name: self.get_submodule(name) for name in ("encoder", *HEADS)})

    def dense_stack(self) -> DenseStack | None:
        """None: it is more than one stack."""
        return None


def _both(parts: Mapping[str, Run], features: Tensor) -> Tensor:
    return torch.cat([parts[name](features) for name in HEADS], -1)


class ValueView:
    """The state value of a shared network, called as a critic is: observations [..., O] -> values [..., 1]."""

    def __init__(self, network: SharedActorCritic) -> None:
        self.network = network

    def __call__(self, obs: Any) -> Tensor:
        """V(s) [..., 1]."""
        return self.network.value(obs)
