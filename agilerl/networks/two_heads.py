"""Networks with a second head, for a state value: both heads read the same features and mutate together."""

from __future__ import annotations

from typing import Any

import torch

from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.morph import prefixed
from agilerl.networks.base import EvolvableNetwork


class TwoHeads(EvolvableNetwork):
    """A network with `value_net` beside `head_net`, where it was built; both mutate under the head's method names."""

    def build_value_head(self, num_outputs: int) -> None:
        """Make `value_net`, of the architecture of `head_net`."""
        self.value_net = EvolvableMLP(
            num_inputs=self.latent_dim,
            num_outputs=num_outputs,
            device=self._device,
            name="value",
            random_seed=self._seeds[1] + 1,
            **self._head_config,
        )
        self.value_net.disable_mutations()  # it follows the head
        self.value_net.rng = self.rng

    @property
    def has_value_head(self) -> bool:
        """Whether `value_net` was built."""
        return "value_net" in self._modules

    def apply_mutation(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """As everywhere; what happens to the head happens to the value head, which chooses its own units."""
        result = super().apply_mutation(name, *args, **kwargs)
        applied = self.last_mutation_attr
        if self.has_value_head and applied is not None and applied.startswith("head_net."):
            getattr(self.value_net, applied.removeprefix("head_net."))(**result)
            self.last_transfer |= prefixed("value_net", self.value_net.last_transfer)
            self.last_refit = self.last_refit or self.value_net.last_refit
        return result

    def recreate_network(self, **kwargs: Any) -> None:
        """Carry out the pending change of the latent width, in encoder and both heads."""
        index, before = self._latent_index, None
        if index is None:
            return
        if self.has_value_head:
            exact = bool((index >= 0).sum() == self.latent_dim) and not getattr(self.encoder, "output_layernorm", False)
            if self.fresh == "preserve" and self.value_net.probe_inputs is not None and not exact:
                before = self.value_net.preactivation(0, self.value_net.probe_inputs)
            self.value_net.resize_inputs(index)
        super().recreate_network(**kwargs)
        if self.has_value_head:
            self.last_transfer |= prefixed("value_net", self.value_net.last_transfer)
            if before is not None and self.value_net.probe_inputs is not None:
                self.value_net.refit_layer(0, self.value_net.probe_inputs, before)

    def change_activation(self, activation: str, output: bool = False) -> None:
        """As everywhere, in both heads."""
        targets = self.value_net.preactivations() if self.has_value_head else []
        super().change_activation(activation, output=output)
        if self.has_value_head:
            value, probe = self.value_net, self.value_net.probe_inputs
            value.probe(None)  # its inputs have changed: it is refitted below, from its first layer on
            value.change_activation(activation, output=output)
            value.probe(probe)
            if probe is not None:
                value.refit_all(targets, 0)

    @torch.no_grad()
    def _probe_parts(self) -> None:
        super()._probe_parts()
        if self.has_value_head:
            self.value_net.probe(self.head_net.probe_inputs)
