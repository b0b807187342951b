"""Mutations of the width between encoder and head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from agilerl.modules.base import EvolvableModule, MutationType, Refused, first, mutation
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.morph import Index, grown, prefixed, without
from agilerl.networks.borrowed import BorrowedEncoder

LATENT_STEPS = (8, 16, 32)


class LatentWidth(BorrowedEncoder):
    """What `EvolvableNetwork` does about its latent features; encoder and head are made by the subclass."""

    encoder: Any
    min_latent_dim: int
    max_latent_dim: int
    _latent_index: Index | None
    last_latent_index: Index | None = None  # where the latent features came from when their width last changed

    def _head(self) -> EvolvableMLP:
        raise NotImplementedError

    def _probe_parts(self) -> None:
        raise NotImplementedError

    # -- mutations -----------------------------------------------------------------------------------------------

    def can_apply(self, name: str) -> bool:
        """Whether the limits leave room for the method."""
        if name == "add_latent_node":
            return self._fits(LATENT_STEPS[0])
        if name == "remove_latent_node":
            return self._fits(-LATENT_STEPS[0])
        return super().can_apply(name)

    def own_mutations(self) -> dict[str, MutationType]:
        """Latent methods only where the encoder can change the width of its output."""
        names = super().own_mutations()
        encoder = self._modules.get("encoder")
        if not (isinstance(encoder, EvolvableModule) and encoder.resizes_outputs):
            names = {n: k for n, k in names.items() if n not in ("add_latent_node", "remove_latent_node")}
        return names

    @mutation(MutationType.NODE)
    def add_latent_node(self, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Widen the latent features (by 8, 16 or 32 if not given); exact without LayerNorm."""
        count = self._pick_latent(numb_new_nodes, 1)
        if count == 0:
            return Refused(numb_new_nodes=0)
        self._latent_index = grown(self.latent_dim, count)
        return {"numb_new_nodes": count}

    @mutation(MutationType.NODE)
    def remove_latent_node(self, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Take out the least important latent features (8, 16 or 32 if not given) and refit the head's first layer."""
        count = self._pick_latent(numb_new_nodes, -1)
        if count == 0:
            return Refused(numb_new_nodes=0)
        if self.fresh == "random":
            removed = list(range(self.latent_dim - count, self.latent_dim))
        else:
            removed = self._head().input_importance()[: self.latent_dim].argsort()[:count].tolist()
        self._latent_index = without(self.latent_dim, removed)
        return {"numb_new_nodes": count}

    def recreate_network(self, **kwargs: Any) -> None:
        """Carry out the pending change of the latent width, in encoder and head."""
        index, self._latent_index = self._latent_index, None
        if index is None:
            return
        self.last_latent_index = index
        self._carry_latent(index, lambda: self.encoder.resize_outputs(index))
        self.last_transfer |= prefixed("encoder", self.encoder.last_transfer)

    def follow_lender(self, lender: Any) -> None:
        """Read `lender` from now on, a mutated copy of the lender so far; a changed latent width reaches the head.

        Growth keeps the function: the head's weights of new features are zero. After a removal the head's first layer
        is refitted, where there are probe inputs.
        """
        self.last_transfer, self.last_refit = {}, False
        if lender.latent_dim == self.latent_dim:
            self.borrow_encoder(lender)
        else:
            self._carry_latent(lender.last_latent_index, lambda: self.borrow_encoder(lender))

    def _carry_latent(self, index: Index, change_encoder: Callable[[], None]) -> None:
        """Change the latent width, in the encoder by `change_encoder` and in the head."""
        head, before = self._head(), None
        exact = bool((index >= 0).sum() == self.latent_dim) and not self.encoder.output_layernorm
        if self.fresh == "preserve" and head.probe_inputs is not None and not exact:
            before = head.preactivation(0, head.probe_inputs)
        others = np.arange(self.latent_dim, head.num_inputs, dtype=np.int64)  # e.g. actions beside the features
        change_encoder()
        head.resize_inputs(np.concatenate([index, others]))
        self.latent_dim = len(index)
        self.last_transfer = prefixed("head_net", head.last_transfer)
        self.last_refit = before is not None
        if self.probe_inputs is not None:
            self._probe_parts()
            if before is not None and head.probe_inputs is not None:
                head.refit_layer(0, head.probe_inputs, before)

    def _fits(self, change: int) -> bool:
        new = self.latent_dim + change
        return new < self.max_latent_dim if change > 0 else new > self.min_latent_dim

    def _pick_latent(self, given: int | None, sign: int) -> int:
        if given is not None:
            return int(given) if given > 0 and self._fits(sign * int(given)) else 0
        drawn = int(first(self.rng.choice(list(LATENT_STEPS))))
        return max((step for step in LATENT_STEPS if step <= drawn and self._fits(sign * step)), default=0)
