"""Adapters of a frozen language model as evolvable networks that can be cloned, saved and selected."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from agilerl.core import foreign
from agilerl.core.rng import Purpose, stream
from agilerl.errors import ConfigError, RunError
from agilerl.language import needs
from agilerl.language.base import BaseModel, Forward, load_base
from agilerl.language.lora import A_OF, B_OF
from agilerl.language.scoring import Texts, hidden_states, log_probs
from agilerl.modules.base import EvolvableModule

DEFAULT_LORA: dict[str, Any] = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
"""Default adapter: LoRA on every linear layer."""
HEAD = "value_head"


def adapter_config(config: Any = None) -> dict[str, Any]:
    """Return a PEFT configuration (an object, a mapping or None) as data, with defaults from `DEFAULT_LORA`."""
    if config is None:
        return dict(DEFAULT_LORA)
    if not isinstance(config, Mapping):
        settings = config.to_dict() if foreign.has_methods(config, "to_dict") else None
        if settings is None:
            raise ConfigError(f"lora_config must be a PEFT configuration or a mapping; got {type(config).__name__}.")
        usual = type(config)().to_dict()
        config = {k: v for k, v in settings.items() if v != usual.get(k) or k in ("peft_type", "r", "lora_alpha")}
    plain = {k: sorted(v) if isinstance(v, set | frozenset) else v for k, v in config.items()}
    plain = {k: str(foreign.value(v)) if k in ("peft_type", "task_type") else v for k, v in plain.items()}
    usual_of_lora = DEFAULT_LORA if plain.get("peft_type", "LORA") == "LORA" else {}
    return {k: v for k, v in {**usual_of_lora, **plain}.items() if k not in ("task_type", "base_model_name_or_path")}


class AdapterNetwork(EvolvableModule):
    """Trainable parameters of one adapter, by their saved names; the shared base is not part of it.

    Args:
        base: the frozen model. config: PEFT configuration, see `adapter_config`.
        with_value: add a linear value head on the last hidden state, initialised to 0.
    """

    def __init__(
        self, base: BaseModel, config: Mapping[str, Any] | None = None, with_value: bool = False,
        device: str | torch.device | None = None, random_seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(base.device if device is None else device, random_seed)
        self.base, self.config, self.with_value = base, adapter_config(config), bool(with_value)
        self.slot = base.slot(self.config)
        rng = torch.Generator().manual_seed(int(stream(self.random_seed, Purpose.INITIAL_WEIGHTS).integers(2**62)))
        for name, value in base.fresh(self.slot).items():
            if name.endswith(A_OF):  # initialised as in PEFT, from a separate stream: members differ
                drawn = torch.empty(value.shape, dtype=value.dtype)  # on the CPU, so that devices have equal values
                value = nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=rng).to(value.device)
            self.register_parameter(_flat(name), nn.Parameter(value.float()))
        if self.with_value:
            self.register_parameter(HEAD, nn.Parameter(torch.zeros(1, base.width, device=base.device)))

    # -- running -----------------------------------------------------------------------------------------------------

    def adapter(self) -> dict[str, Tensor]:
        """Return saved name -> parameter."""
        return {name: self._parameters[_flat(name)] for name in self.slot.live}  # type: ignore[misc]

    @contextlib.contextmanager
    def running(self) -> Iterator[Forward]:
        """Context manager: the decoder with this adapter, run by PEFT, as the reference implementation."""
        with self.base.adapted(self.slot, self.adapter()) as forward:
            yield forward

    def forward(self, texts: Texts, temperature: Tensor | float = 1.0) -> Tensor:
        """Return log-probabilities [R, T] of completion tokens; with a value head the values before them."""
        with self.running() as forward:
            hidden = hidden_states(forward, texts)
            if self.with_value:
                return values_of(hidden, cast(Tensor, self._parameters[HEAD]))
            tokens = texts.tokens[..., texts.prompt :]
            return log_probs(hidden, self.base.head, tokens, temperature, self.base.head_bias)

    output = forward

    def tensors(self) -> dict[str, nn.Parameter]:
        """Return name -> parameter, for all parameters."""
        return {name: p for name, p in self._parameters.items() if p is not None}

    @property
    def stacks(self) -> bool:
        """Whether several adapters can run in one pass, see `language.lora`."""
        return self.slot.is_plain_lora

    # -- evolution interface -----------------------------------------------------------------------------------------

    def not_owned(self) -> Sequence[Any]:
        return (self.base, self.slot)

    def spec(self) -> dict[str, Any]:
        config = json.loads(json.dumps(self.config))
        return {
            "class": type(self).__name__, "base": self.base.identity(), "config": config, "with_value": self.with_value
        }  # fmt: skip

    def rebuilt(self, spec: Mapping[str, Any], device: str | torch.device, **more: Any) -> Self:
        """Build an adapter on the same base; RunError if the specification belongs to another base."""
        self.base.check_identity(spec["base"], "the saved adapter")
        return type(self)(self.base, spec["config"], spec["with_value"], device, **more)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], **arguments: Any) -> Self:
        identity = spec["base"]
        if not identity["source"]:
            raise RunError("the adapter's base was built in memory and not saved. fix: build the agent with it.")
        base = load_base(identity["source"], device=arguments.get("device", "cpu"))
        base.check_identity(identity, "the saved adapter")
        return cls(base, spec["config"], spec["with_value"], **arguments)

    def describe(self) -> str:
        """Describe kind and rank of the adapter, and its base."""
        kind = self.config.get("peft_type", "LORA")
        rank = f" of rank {self.config['r']}" if "r" in self.config else ""
        return f"{kind}{rank} on {self.base.describe()}"

    # -- PEFT files --------------------------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path) -> None:
        """Save adapter_model.safetensors and adapter_config.json in PEFT's format, and the tokenizer."""
        peft, save_file = needs("peft"), needs("safetensors.torch").save_file
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in self.adapter().items()}
        save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
        config = peft.get_peft_config({**self.config, "task_type": "CAUSAL_LM", "inference_mode": True})
        config.base_model_name_or_path = self.base.source or None
        config.save_pretrained(str(folder))
        self.base.tokenizer.save_pretrained(str(folder))

    def load_pretrained(self, folder: str | Path) -> None:
        """Load the weights of an adapter in PEFT's format.

        Raises:
            RunError: missing files, other names or shapes, or non-finite numbers. Pickles are not read.
        """
        path = Path(folder) / "adapter_model.safetensors"
        if not path.is_file():
            raise RunError(f"{folder} has no adapter_model.safetensors (pickles are not read). fix: a folder of PEFT.")
        try:
            tensors = needs("safetensors.torch").load_file(str(path))
        except Exception as error:
            raise RunError(f"{path} is not a safetensors file: {error}") from error
        parameters = self.adapter()
        wrong = sorted(set(parameters) ^ set(tensors)) or [
            k for k in parameters if parameters[k].shape != tensors[k].shape
        ]
        if wrong:
            raise RunError(
                f"{path} is the adapter of another configuration or base: {len(wrong)} parameters differ, "
                f"{wrong[0]} first. fix: lora_config as in its adapter_config.json."
            )
        bad = [name for name, value in tensors.items() if not value.isfinite().all()]
        if bad:
            raise RunError(f"{path}: {bad[0]} has numbers that are not finite. fix: an earlier checkpoint.")
        with torch.no_grad():
            for name, value in tensors.items():
                parameters[name].copy_(value)


def values_of(hidden: Tensor, head: Tensor) -> Tensor:
    """Return values [R, T] of hidden states [R, T, H], in at least float32; `head` [1, H], or [N, 1, H] by member."""
    kind = torch.promote_types(hidden.dtype, torch.float32)
    if head.dim() == 2:
        return (hidden.to(kind) @ head.to(kind).T).squeeze(-1)
    flat = hidden.to(kind).reshape(head.shape[0], -1, hidden.shape[-1])
    return torch.bmm(flat, head.to(kind).transpose(1, 2)).view(hidden.shape[:-1])


def _flat(name: str) -> str:
    """Replace the dots in a saved name, which torch does not allow in parameter names."""
    return name.replace(".", "/")


__all__ = ["A_OF", "B_OF", "AdapterNetwork", "adapter_config", "values_of"]
