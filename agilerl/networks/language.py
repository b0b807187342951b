"""Decoder network between two token spaces: predicts the next token at every position of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

import torch
from gymnasium import Space, spaces
from torch import Tensor

from agilerl.core.signatures import constructor_arguments
from agilerl.core.spaces import space_from_json, space_to_json
from agilerl.errors import AlgorithmError, ConfigError, unknown_choice
from agilerl.modules.base import EvolvableModule
from agilerl.modules.gpt import EvolvableGPT
from agilerl.modules.morph import prefixed

SMALL: dict[str, Any] = {
    "n_layer": 2, "n_embd": 64, "n_head": 4, "dim_feedfwd": 256, "min_layers": 1, "max_layers": 6,
    "min_mlp_nodes": 32, "max_mlp_nodes": 1024,
}  # fmt: skip
"""Defaults of `gpt_config`: an `EvolvableGPT` small enough to train on a CPU."""
DECIDED = ("vocab_size", "block_size", "num_outputs", "tied", "device", "random_seed", "name")  # set by the spaces


def vocabularies(observation_space: Any, action_space: Any, algo: str = "A language policy") -> tuple[int, int]:
    """Return the number of tokens, and how many of them, the first ones, the policy can generate.

    Text spaces are MultiDiscrete [W] · L for observations, padded with 0 on the right, and MultiDiscrete [V] · K for
    the tokens generated at a time; V ≤ W, K < L.

    Raises:
        AlgorithmError: other spaces.
    """
    sizes: list[int] = []
    for space in (observation_space, action_space):
        if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not space.start.any():
            sizes += set(space.nvec.tolist())
    if len(sizes) != 2 or sizes[1] > sizes[0] or len(observation_space.nvec) <= len(action_space.nvec):
        raise AlgorithmError(
            f"{algo} reads texts and generates tokens: MultiDiscrete([W] * L) observations, padded with 0 on the "
            f"right, and MultiDiscrete([V] * K) actions, V ≤ W, K < L; got {observation_space} and {action_space}. "
            "fix: an environment of texts, such as agilerl.envs.simulators.wordle.Wordle."
        )
    return sizes[0], sizes[1]


class TokenNetwork(EvolvableModule):
    """A decoder over texts [B, L] of an observation space, with outputs for the V tokens of an action space.

    Args:
        observation_space, action_space: see `vocabularies`.
        with_values: output two values [V] of tokens and one of the state besides the logits [V]: [3 V + 1] in this
            order.
        gpt_config: arguments of `EvolvableGPT`; defaults from `SMALL`.
    """

    def __init__(
        self, observation_space: Any, action_space: Space[Any], with_values: bool = False,
        gpt_config: Mapping[str, Any] | None = None, device: str | torch.device = "cpu", random_seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(device, random_seed)
        self.observation_space, self.action_space, self.with_values = observation_space, action_space, bool(with_values)
        tokens, self.vocabulary = vocabularies(observation_space, action_space)
        options = dict(gpt_config or {})
        valid_names = [name for name in constructor_arguments(EvolvableGPT) if name not in DECIDED]
        for name in options:
            if name not in valid_names:
                raise ConfigError(unknown_choice("setting of net_config", str(name), valid_names))
        self.gpt = EvolvableGPT(
            **{**SMALL, **options}, vocab_size=tokens, block_size=len(observation_space.nvec),
            num_outputs=3 * self.vocabulary + 1 if with_values else self.vocabulary, device=device,
            random_seed=self.random_seed,
        )  # fmt: skip
        self.gpt.rng = self.rng

    def forward(self, tokens: object) -> Tensor:
        """Return outputs [B, L, O] at every position of texts [B, L]."""
        return cast(Tensor, self.gpt(tokens))

    def parts(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split outputs with values: (logits [..., V], two values of tokens [2, ..., V], values of states [...])."""
        logits, first, second, state = torch.split(outputs, [self.vocabulary] * 3 + [1], -1)
        return logits, torch.stack((first, second)), state.squeeze(-1)

    # -- evolution interface ---------------------------------------------------------------------------------------

    def probe(self, inputs: Any) -> None:
        super().probe(inputs)
        self.gpt.probe(inputs)

    @property
    def activation(self) -> str | None:
        return self.gpt.activation

    def change_activation(self, activation: str, output: bool = False) -> None:
        self.gpt.change_activation(activation)
        self.last_transfer, self.last_refit = prefixed("gpt", self.gpt.last_transfer), self.gpt.last_refit
        self.last_mutation_attr = "change_activation"

    @property
    def gpt_config(self) -> dict[str, Any]:
        """Current configuration of the decoder."""
        return {name: value for name, value in self.gpt.net_config.items() if name not in DECIDED}

    def spec(self) -> dict[str, Any]:
        data = super().spec()
        return data | {name: space_to_json(data[name]) for name in ("observation_space", "action_space")}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], **arguments: Any) -> Self:
        named = {name: space_from_json(spec[name]) for name in ("observation_space", "action_space")}
        return super().from_spec({**spec, **named}, **arguments)

    def describe(self) -> str:
        """Return blocks and widths, see `EvolvableGPT`."""
        return self.gpt.short()
