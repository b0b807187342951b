"""One frozen language model in memory, however many adapters stand on it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from agilerl import foreign
from agilerl.errors import ConfigError, RunError
from agilerl.language import needs
from agilerl.language.ends import end_ids
from agilerl.language.padding import pad_left as pad_left
from agilerl.language.padding import positions_of as positions_of
from agilerl.language.parity import FIX, check_parity
from agilerl.language.tokenizer import eos_id, fingerprint, is_tokenizer_of, load_tokenizer, pad_id


class Forward(Protocol):
    """What runs the decoder: tokens [R, L] to last hidden states [R, L, H].

    `attention` [R, S] bool covers what the cache holds too, `positions` [R, L] int64 those of the tokens.
    """

    def __call__(self, tokens: Tensor, attention: Tensor, positions: Tensor, cache: Any = None) -> Tensor: ...


@dataclass(frozen=True)
class Slot:
    """Where adapters of one configuration run in a base.

    Attributes:
        name: of the PEFT adapter that is there. config: of PEFT, as data.
        live: name in a saved adapter -> name of the parameter in the base, in order.
        shapes: name in a saved adapter -> shape.
        on_linear_layers: whether every adapted layer is a linear one with the scale of the configuration. PEFT adapts
            fused experts of a mixture as parameters, with ranks of their own.
    """

    name: str
    config: Mapping[str, Any]
    live: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    on_linear_layers: bool = True

    @property
    def is_plain_lora(self) -> bool:
        """Whether each target's output is that of the base plus scale · B A x, and nothing else."""
        extras = ("use_dora", "lora_dropout", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern",
                  "trainable_token_indices", "layer_replication", "target_parameters")  # fmt: skip
        parts = all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in self.live)
        plain_bias = self.config.get("bias", "none") == "none"
        return parts and plain_bias and self.on_linear_layers and not any(self.config.get(name) for name in extras)

    @property
    def scale(self) -> float:
        """Of plain LoRA: α/r, or α/√r of rsLoRA (Hu et al. 2021, arXiv:2106.09685, section 4.1; arXiv:2312.03732)."""
        rank = self.config["r"]
        return float(self.config["lora_alpha"] / (rank**0.5 if self.config.get("use_rslora") else rank))


class BaseModel:
    """A causal language model whose weights never change, and its tokenizer.

    Args:
        model: a Hugging Face causal language model; it is frozen, and put into evaluation mode.
        tokenizer: its tokenizer.
        source: the folder or hub id that it came from; empty for one that was made in this process.

    Attributes:
        pad_id, end_id: the tokens that pad, and that end a text; they may be one.
        end_ids: all tokens that end a completion, `end_id` first; see `language.ends.end_ids`.
        writer: a back end that holds a copy of this base and writes for all of its adapters; made when it is asked for.
    """

    def __init__(self, model: Any, tokenizer: Any, source: str = "") -> None:
        self.model: Any = model.requires_grad_(False).eval()
        self.tokenizer, self.source = tokenizer, source
        self.pad_id, self.end_id = pad_id(tokenizer), eos_id(tokenizer)
        self.end_ids = self._end_ids()
        self.inner: Any = self.model.base_model  # the decoder below the output layer
        config: Any = self.model.config
        self._check_output_layer()
        self.width = int(config.hidden_size)
        self.context = foreign.context_of(config)
        self.writer: Any = None
        self._peft: Any = None
        self._slots: dict[str, Slot] = {}
        self._first: dict[str, dict[str, Tensor]] = {}
        self._sha: str | None = None
        check_parity(self, source)

    def _end_ids(self) -> tuple[int, ...]:
        """Of the tokenizer and its files, and of the model's generation_config; each is a token of the model."""
        ends = end_ids(self.tokenizer)
        if foreign.has_generation_config(self.model):
            ends += end_ids(self.tokenizer, self.model.generation_config)
        size = int(self.model.config.get_text_config().vocab_size)
        return tuple(end for end in dict.fromkeys(ends) if end < size or end == self.end_id)

    def _check_output_layer(self) -> None:
        layer = self.model.get_output_embeddings()
        if not isinstance(layer, nn.Module) or not isinstance(foreign.weight(layer), Tensor):
            raise ConfigError(
                f"{self.source or type(self.model).__name__} has no output layer with a weight, so its logits cannot "
                f"be computed. {FIX}"
            )

    # -- identity ----------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        found: torch.device = self.head.device
        return found

    @property
    def head(self) -> Tensor:
        """The output layer's weight [V, H]."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def head_bias(self) -> Tensor | None:
        """The output layer's bias [V]; None where it has none, as in most families."""
        bias: Tensor | None = foreign.bias(self.model.get_output_embeddings())
        return bias

    def logits(self, hidden: Tensor) -> Tensor:
        """W h + b [..., V] of last hidden states [..., H]."""
        product = hidden @ self.head.T
        return product if self.head_bias is None else product + self.head_bias

    @property
    def sha256(self) -> str:
        """Of all weights and the architecture; adapters are no part of it."""
        if self._sha is None:
            self._sha = _hash_of(self.model)
        return self._sha

    def identity(self) -> dict[str, str]:
        """What a checkpoint says of the base: where it came from, and what must be the same."""
        return {"source": self.source, "sha256": self.sha256, "tokenizer": fingerprint(self.tokenizer)}

    def check_identity(self, known: Mapping[str, str], where: str) -> None:
        """RunError where an adapter was trained on other weights or with another tokenizer."""
        own = self.identity()
        same = {
            "sha256": known["sha256"] == own["sha256"],
            "tokenizer": is_tokenizer_of(self.tokenizer, known["tokenizer"]),
        }
        for key, what in (("sha256", "base model's weights"), ("tokenizer", "tokenizer")):
            if not same[key]:
                raise RunError(
                    f"{where}: the {what} are not those that the adapter was trained with: {known[key][:12]} then "
                    f"({known['source'] or 'made in memory'}), {own[key][:12]} now ({own['source'] or 'in memory'}). "
                    "fix: the same base model and tokenizer, unchanged."
                )

    def __reduce__(self) -> Any:
        if not self.source:
            raise TypeError("a base model that was made in memory cannot be pickled. fix: save_pretrained, load_base.")
        return load_base, (self.source, self.model.dtype, str(self.device))

    # -- adapters ----------------------------------------------------------------------------------------------------

    def slot(self, config: Mapping[str, Any]) -> Slot:
        """Where adapters of this PEFT configuration run; made where it is not there yet.

        Raises:
            ConfigError: a configuration that PEFT does not take, or whose adapters are not parts of layers.
        """
        peft = needs("peft")
        key = json.dumps(config, sort_keys=True, default=sorted)
        if key in self._slots:
            return self._slots[key]
        name = f"slot{len(self._slots)}"
        try:
            given = peft.get_peft_config({"task_type": "CAUSAL_LM", **config})
            if given.is_prompt_learning:
                raise ConfigError(f"{given.peft_type.value} is no part of layers. fix: LoRA, DoRA, IA3, LoHa or LoKr.")
            with quiet(), torch.random.fork_rng(devices=[]):  # PEFT draws what every adapter here draws anew
                if self._peft is None:
                    self._peft = peft.get_peft_model(self.model, given, adapter_name=name)
                else:
                    self._peft.add_adapter(name, given)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ConfigError(f"PEFT does not take the adapter configuration {dict(config)}: {error}") from error
        saved = peft.get_peft_model_state_dict(self._peft, adapter_name=name)
        live = _live_names(self._peft, name, saved)
        shapes = {short: tuple(tensor.shape) for short, tensor in saved.items()}
        for full in live.values():
            self._peft.get_parameter(full).requires_grad_(False)
        self._first[name] = {short: self._peft.get_parameter(full).detach().clone() for short, full in live.items()}
        self._peft.base_model.disable_adapter_layers()
        made = Slot(name, dict(config), live, shapes)
        if made.is_plain_lora:
            made = replace(made, on_linear_layers=self._on_linear_layers(made))
        self._slots[key] = made
        return made

    def _on_linear_layers(self, slot: Slot) -> bool:
        linear = needs("peft.tuners.lora").Linear
        layers = [self.layer(slot, saved) for saved in slot.live]
        return all(isinstance(own, linear) and own.scaling[slot.name] == slot.scale for own in layers)

    def layer(self, slot: Slot, saved: str) -> nn.Module:
        """The layer of the base that a saved parameter (`....lora_A.weight`) adapts."""
        path = slot.live[saved].partition(".lora_")[0]
        found: nn.Module = self._peft.get_submodule(path)
        return found

    def fresh(self, slot: Slot) -> dict[str, Tensor]:
        """What PEFT made in the slot, copies by saved name; what has run there since is no part of it."""
        return {short: value.clone() for short, value in self._first[slot.name].items()}

    @contextlib.contextmanager
    def adapted(self, slot: Slot, values: Mapping[str, Tensor]) -> Iterator[Forward]:
        """The decoder with one adapter, run by PEFT itself; differentiable in `values` where gradients are on.

        Args:
            values: by saved name.
        """
        self._peft.set_adapter(slot.name)
        self._peft.base_model.enable_adapter_layers()
        prefix = "base_model.model."
        own = {slot.live[short].removeprefix(prefix): value for short, value in values.items()}
        if torch.is_grad_enabled():
            named = {self._inside(full): value for full, value in own.items()}

            def run(tokens: Tensor, attention: Tensor, positions: Tensor, cache: Any = None) -> Tensor:
                arguments = _arguments(tokens, attention, positions, cache)
                out = torch.func.functional_call(self.inner, named, (), arguments)
                hidden: Tensor = out.last_hidden_state
                return hidden
        else:
            for full, value in own.items():
                self.model.get_parameter(full).copy_(value)
            run = self.plain
        try:
            yield run
        finally:
            self._peft.base_model.disable_adapter_layers()

    def plain(self, tokens: Tensor, attention: Tensor, positions: Tensor, cache: Any = None) -> Tensor:
        """The decoder as the base is now, as of `Forward`."""
        hidden: Tensor = self.inner(**_arguments(tokens, attention, positions, cache)).last_hidden_state
        return hidden

    def _inside(self, full: str) -> str:
        """The name in the decoder of a parameter of the whole model."""
        return full.removeprefix(f"{self.model.base_model_prefix}.")

    def describe(self) -> str:
        """One line: family, size, where it came from."""
        size = sum(p.numel() for name, p in self.model.named_parameters() if ".slot" not in name)
        return f"{self.model.config.model_type} of {size:,} parameters ({self.source or 'made in memory'})"


def _arguments(tokens: Tensor, attention: Tensor, positions: Tensor, cache: Any) -> dict[str, Any]:
    given = {"input_ids": tokens, "attention_mask": attention.long(), "position_ids": positions}
    return {**given, "past_key_values": cache, "use_cache": cache is not None}


def _live_names(peft_model: nn.Module, slot: str, saved: Mapping[str, Tensor]) -> dict[str, str]:
    """Saved name -> name of the live parameter, in whose path the slot's name stands somewhere."""
    found = {}
    for full, _ in peft_model.named_parameters():
        parts = full.split(".")
        if slot in parts:
            parts.remove(slot)
            short = ".".join(parts)
            found[short if short in saved else short.removesuffix(".weight")] = full
    missing = [short for short in saved if short not in found]
    if missing:
        raise ConfigError(
            f"the adapter has parts that are no parameters of layers: {missing[0]} first. fix: plain LoRA."
        )
    return {short: found[short] for short in saved}


def _hash_of(model: nn.Module) -> str:
    digest = hashlib.sha256(type(model).__name__.encode())
    for name, tensor in sorted(model.state_dict().items()):
        if ".slot" not in name:
            plain = name.replace(".base_layer.", ".")
            digest.update(f"{plain} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


_LOADED: weakref.WeakValueDictionary[tuple[str, ...], BaseModel] = weakref.WeakValueDictionary()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bar of weights, and its notices of changes to come, which users cannot act on."""
    logging = needs("transformers.utils.logging")
    had_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
            yield
    finally:
        if had_bar:
            logging.enable_progress_bar()


def load_base(source: str | Path, dtype: torch.dtype | None = None, device: str | torch.device = "cpu") -> BaseModel:
    """The base model in a folder, or of a hub id; the one that is in memory already, as long as somebody holds it.

    Args:
        dtype: of the weights; None: float32 on a CPU, bfloat16 elsewhere. Log-probabilities are float32 always.

    Raises:
        ConfigError: nothing that can be loaded is there.
    """
    transformers = needs("transformers")
    kind = dtype or (torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16)
    folder = Path(source).expanduser()
    where = str(folder.resolve()) if folder.exists() else str(source)
    key = where, str(kind), str(torch.device(device))
    found = _LOADED.get(key)
    if found is None:
        try:
            with quiet():
                model = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=kind, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"no causal language model could be loaded from {str(source)!r}: {str(error).splitlines()[0]} "
                "fix: a folder with config.json and model.safetensors, or a hub id."
            ) from error
        _LOADED[key] = found = BaseModel(model.to(device), load_tokenizer(where), where)
    return found
