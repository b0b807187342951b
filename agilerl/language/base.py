"""A frozen language model that is shared by any number of adapters."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from agilerl.core import foreign
from agilerl.errors import ConfigError, RunError
from agilerl.language import needs
from agilerl.language.ends import end_ids
from agilerl.language.padding import positions_of
from agilerl.language.tokenizer import eos_id, fingerprint, is_tokenizer_of, load_tokenizer, pad_id, special_ids

TEXT = "What is 12 + 7? 19."
LENGTH = 8  # tokens of the probe
PADDING = 3  # tokens before the second row of the probe
LARGE = 100.0  # largest logit of the second probe: a cap at 30 changes it, but not logits around 0
FIX = "fix: a model of the Llama, Qwen, Mistral, Phi or GPT-2 families."
_SCALING = re.compile(r"logit|soft_?cap|lm_head_mult")


class Forward(Protocol):
    """Forward pass of the decoder: tokens [R, L] to last hidden states [R, L, H].

    `attention` [R, S] bool covers cached tokens too; `positions` [R, L] int64 are those of `tokens`.
    """

    def __call__(self, tokens: Tensor, attention: Tensor, positions: Tensor, cache: object = None) -> Tensor: ...


@dataclass(frozen=True)
class Slot:
    """The place of adapters of one configuration in a base.

    Attributes:
        name: of the PEFT adapter. config: of PEFT, as a dictionary.
        live: name in a saved adapter -> name of the parameter in the base, in order.
        shapes: name in a saved adapter -> shape.
        on_linear_layers: whether every adapted layer is linear and has the scale of the configuration. PEFT adapts
            fused experts of a mixture as parameters, with separate ranks.
    """

    name: str
    config: Mapping[str, Any]
    live: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    on_linear_layers: bool = True

    @property
    def is_plain_lora(self) -> bool:
        """Whether each target's output is that of the base plus scale · B A x exactly."""
        extras = ("use_dora", "lora_dropout", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern",
                  "trainable_token_indices", "layer_replication", "target_parameters")  # fmt: skip
        parts = all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in self.live)
        plain_bias = self.config.get("bias", "none") == "none"
        return parts and plain_bias and self.on_linear_layers and not any(self.config.get(name) for name in extras)

    @property
    def scale(self) -> float:
        """Scale of plain LoRA: α/r, or α/√r of rsLoRA (Hu et al. 2021, arXiv:2106.09685, s. 4.1; arXiv:2312.03732)."""
        rank = self.config["r"]
        return float(self.config["lora_alpha"] / (rank**0.5 if self.config.get("use_rslora") else rank))


class BaseModel:
    """A frozen causal language model and its tokenizer.

    Args:
        model: a Hugging Face causal language model; it is frozen and set to evaluation mode.
        tokenizer: its tokenizer.
        source: the folder or hub id it was loaded from; empty for a model built in this process.

    Attributes:
        pad_id, end_id: the padding and end-of-text tokens; they may be the same.
        end_ids: all tokens that end a completion, `end_id` first; see `language.ends.end_ids`.
        writer: a generation back end that holds a copy of this base for all of its adapters; created on demand.
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
        """End tokens of the tokenizer, its files and the model's generation_config, within the model's vocabulary."""
        ends = end_ids(self.tokenizer)
        if foreign.has_generation_config(self.model):
            ends += end_ids(self.tokenizer, self.model.generation_config)
        size = int(self.model.config.get_text_config().vocab_size)
        return tuple(end for end in dict.fromkeys(ends) if end < size or end == self.end_id)

    def _check_output_layer(self) -> None:
        layer = self.model.get_output_embeddings()
        if not isinstance(layer, nn.Module) or not isinstance(foreign.weight(layer), Tensor):
            raise ConfigError(f"{self.source or type(self.model).__name__} has no output layer with a weight. {FIX}")

    # -- identity ----------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.head.device

    @property
    def head(self) -> Tensor:
        """The output layer's weight [V, H]."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def head_bias(self) -> Tensor | None:
        """The output layer's bias [V]; None without one, as in most families."""
        bias: Tensor | None = foreign.bias(self.model.get_output_embeddings())
        return bias

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits W h + b [..., V] of last hidden states [..., H]."""
        product = hidden @ self.head.T
        return product if self.head_bias is None else product + self.head_bias

    @property
    def sha256(self) -> str:
        """SHA-256 of all weights and the architecture, without adapters."""
        if self._sha is None:
            self._sha = _hash_of(self.model)
        return self._sha

    def identity(self) -> dict[str, str]:
        """Identity of the base for checkpoints: its source, and hashes of weights and tokenizer."""
        return {"source": self.source, "sha256": self.sha256, "tokenizer": fingerprint(self.tokenizer)}

    def check_identity(self, known: Mapping[str, str], where: str) -> None:
        """Raise RunError if an adapter was trained on other weights or with another tokenizer."""
        current = self.identity()
        same = {
            "sha256": known["sha256"] == current["sha256"],
            "tokenizer": is_tokenizer_of(self.tokenizer, known["tokenizer"]),
        }
        for key, name in (("sha256", "base model's weights"), ("tokenizer", "tokenizer")):
            if not same[key]:
                raise RunError(
                    f"{where}: the {name} are not those that the adapter was trained with: {known[key][:12]} then "
                    f"({known['source'] or 'made in memory'}), {current[key][:12]} now "
                    f"({current['source'] or 'in memory'}). fix: the same base model and tokenizer, unchanged."
                )

    def __reduce__(self) -> Any:
        if not self.source:
            raise TypeError("a base model that was made in memory cannot be pickled. fix: save_pretrained, load_base.")
        return load_base, (self.source, self.model.dtype, str(self.device))

    # -- adapters ----------------------------------------------------------------------------------------------------

    def slot(self, config: Mapping[str, Any]) -> Slot:
        """The slot for adapters of this PEFT configuration, created on first use.

        Raises:
            ConfigError: a configuration that PEFT rejects, or whose adapters are not parts of layers.
        """
        peft = needs("peft")
        key = json.dumps(config, sort_keys=True, default=sorted)
        if key in self._slots:
            return self._slots[key]
        name = f"slot{len(self._slots)}"
        try:
            peft_config = peft.get_peft_config({"task_type": "CAUSAL_LM", **config})
            if peft_config.is_prompt_learning:
                kind = peft_config.peft_type.value
                raise ConfigError(f"{kind} is no part of layers. fix: LoRA, DoRA, IA3, LoHa or LoKr.")
            with quiet(), torch.random.fork_rng(devices=[]):  # PEFT's initial values; adapters draw new ones
                if self._peft is None:
                    self._peft = peft.get_peft_model(self.model, peft_config, adapter_name=name)
                else:
                    self._peft.add_adapter(name, peft_config)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ConfigError(f"PEFT does not take the adapter configuration {dict(config)}: {error}") from error
        saved = peft.get_peft_model_state_dict(self._peft, adapter_name=name)
        live = _live_names(self._peft, name, saved)
        shapes = {short: tuple(tensor.shape) for short, tensor in saved.items()}
        for full in live.values():
            self._peft.get_parameter(full).requires_grad_(False)
        self._first[name] = {short: self._peft.get_parameter(full).detach().clone() for short, full in live.items()}
        self._peft.base_model.disable_adapter_layers()
        slot = Slot(name, dict(config), live, shapes)
        if slot.is_plain_lora:
            slot = replace(slot, on_linear_layers=self._on_linear_layers(slot))
        self._slots[key] = slot
        return slot

    def _on_linear_layers(self, slot: Slot) -> bool:
        linear = needs("peft.tuners.lora").Linear
        layers = [self.layer(slot, saved) for saved in slot.live]
        return all(isinstance(layer, linear) and layer.scaling[slot.name] == slot.scale for layer in layers)

    def layer(self, slot: Slot, saved: str) -> nn.Module:
        """The layer of the base adapted by a saved parameter (`....lora_A.weight`)."""
        path = slot.live[saved].partition(".lora_")[0]
        layer: nn.Module = self._peft.get_submodule(path)
        return layer

    def fresh(self, slot: Slot) -> dict[str, Tensor]:
        """PEFT's initial parameters of the slot, as copies by saved name."""
        return {short: value.clone() for short, value in self._first[slot.name].items()}

    @contextlib.contextmanager
    def adapted(self, slot: Slot, values: Mapping[str, Tensor]) -> Iterator[Forward]:
        """The decoder with one adapter, run by PEFT; differentiable in `values` if gradients are enabled.

        Args:
            values: by saved name.
        """
        self._peft.set_adapter(slot.name)
        self._peft.base_model.enable_adapter_layers()
        prefix = "base_model.model."
        parameters = {slot.live[short].removeprefix(prefix): value for short, value in values.items()}
        if torch.is_grad_enabled():
            named = {self._inside(full): value for full, value in parameters.items()}

            def run(tokens: Tensor, attention: Tensor, positions: Tensor, cache: object = None) -> Tensor:
                arguments = _arguments(tokens, attention, positions, cache)
                out = torch.func.functional_call(self.inner, named, (), arguments)
                hidden: Tensor = out.last_hidden_state
                return hidden
        else:
            for full, value in parameters.items():
                self.model.get_parameter(full).copy_(value)
            run = self.plain
        try:
            yield run
        finally:
            self._peft.base_model.disable_adapter_layers()

    def plain(self, tokens: Tensor, attention: Tensor, positions: Tensor, cache: object = None) -> Tensor:
        """The decoder in its current state; see `Forward`."""
        hidden: Tensor = self.inner(**_arguments(tokens, attention, positions, cache)).last_hidden_state
        return hidden

    def _inside(self, full: str) -> str:
        """Name within the decoder of a parameter of the whole model."""
        return full.removeprefix(f"{self.model.base_model_prefix}.")

    def describe(self) -> str:
        """One line: family, size, source."""
        size = sum(p.numel() for name, p in self.model.named_parameters() if ".slot" not in name)
        return f"{self.model.config.model_type} of {size:,} parameters ({self.source or 'made in memory'})"


def _arguments(tokens: Tensor, attention: Tensor, positions: Tensor, cache: object) -> dict[str, Any]:
    arguments = {"input_ids": tokens, "attention_mask": attention.long(), "position_ids": positions}
    return {**arguments, "past_key_values": cache, "use_cache": cache is not None}


def _live_names(peft_model: nn.Module, slot: str, saved: Mapping[str, Tensor]) -> dict[str, str]:
    """Saved name -> name of the live parameter, whose path contains the slot's name."""
    names = {}
    for full, _ in peft_model.named_parameters():
        parts = full.split(".")
        if slot in parts:
            parts.remove(slot)
            short = ".".join(parts)
            names[short if short in saved else short.removesuffix(".weight")] = full
    missing = [short for short in saved if short not in names]
    if missing:
        raise ConfigError(f"the adapter has parts beside layers: {missing[0]} first. fix: plain LoRA.")
    return {short: names[short] for short in saved}


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
    """Suppress transformers' progress bar of weights and its deprecation notices, which users cannot act on."""
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
    """Load a base model from a folder or hub id; cached as long as a reference to it exists.

    Args:
        dtype: of the weights; None: float32 on a CPU, bfloat16 elsewhere. Log-probabilities are always float32.

    Raises:
        ConfigError: the model cannot be loaded.
    """
    transformers = needs("transformers")
    kind = dtype or (torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16)
    folder = Path(source).expanduser()
    where = str(folder.resolve()) if folder.exists() else str(source)
    key = where, str(kind), str(torch.device(device))
    base = _LOADED.get(key)
    if base is None:
        try:
            with quiet():
                model = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=kind, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"no causal language model could be loaded from {str(source)!r}: {str(error).splitlines()[0]} "
                "fix: a folder with config.json and model.safetensors, or a hub id."
            ) from error
        _LOADED[key] = base = BaseModel(model.to(device), load_tokenizer(where), where)
    return base


# -- comparison with the model's own forward pass ----------------------------------------------------------------------


def check_parity(base: BaseModel, source: str) -> None:
    """Compare the logits of `base` with those of its model on one text.

    Every causal language model of transformers has a `forward` that returns logits. Here the decoder and the output
    layer run separately, on left-padded prompts and through a key-value cache. That is wrong for some families: logits
    that are scaled or capped, recurrent states that padding changes. So each base is checked when it is loaded.

    Args:
        source: names the model in the error.

    Raises:
        ConfigError: they differ, or the model cannot be run this way.
    """
    name = f"{source} ({type(base.model).__name__})" if source else type(base.model).__name__
    tokens = probe_tokens(base)
    try:
        with torch.no_grad():
            fault = _output_layer(base, tokens) or _padding(base, tokens) or _cache(base, tokens)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # third-party code may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ConfigError(f"{name} cannot be run as a base: {reason}. {FIX}") from error
    if fault:
        raise ConfigError(f"{name} {fault}. {FIX}")


def probe_tokens(base: BaseModel) -> Tensor:
    """[1, LENGTH] int64 non-special tokens of `TEXT` that have embeddings."""
    size = int(base.model.get_input_embeddings().weight.shape[0])
    special = special_ids(base.tokenizer)
    ids = [int(token) for token in base.tokenizer.encode(TEXT, add_special_tokens=False)]
    usable = [token for token in ids if token < size and token not in special]
    usable += [token for token in range(size) if token not in special][:LENGTH] or list(range(size))
    repeated = (usable * LENGTH)[:LENGTH]
    return torch.tensor([repeated], device=base.device)


def _output_layer(base: BaseModel, tokens: Tensor) -> str:
    """Compare W h + b with the model's logits, for its last hidden states h and for large multiples of them."""
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    hidden = base.plain(tokens, everywhere, positions_of(everywhere))
    theirs: Tensor = base.model(input_ids=tokens, use_cache=False).logits
    return _scaling(base, hidden, theirs) or _scaling(base, *_large_logits(base, tokens))


def _scaling(base: BaseModel, hidden: Tensor, theirs: Tensor) -> str:
    ours, theirs = base.logits(hidden).float(), theirs.float()
    if ours.shape != theirs.shape:
        return f"has logits of shape {list(theirs.shape)}, and its output layer gives {list(ours.shape)}"
    difference, size = float((ours - theirs).abs().max()), float(theirs.abs().max())
    if difference <= (1e-4 if _is_precise(hidden) else 0.03) * max(size, 1e-6):
        return ""
    return (
        f"scales its logits{_settings(base)}, which this version does not compute: they differ by {difference:.2g} "
        "from the product of the output layer and the last hidden states"
    )


def _large_logits(base: BaseModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """(input of the output layer, scaled such that its largest output is `LARGE`; the model's logits)."""
    seen: list[Tensor] = []

    def enlarge(layer: object, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden = arguments[0]
        seen.append(hidden * (LARGE / max(float(base.logits(hidden).abs().max()), 1e-6)))
        return (seen[-1], *arguments[1:])

    handle = base.model.get_output_embeddings().register_forward_pre_hook(enlarge)
    try:
        logits: Tensor = base.model(input_ids=tokens, use_cache=False).logits
    finally:
        handle.remove()
    if len(seen) != 1:
        raise ValueError(f"its output layer was called {len(seen)} times in one pass")
    return seen[0], logits


def _padding(base: BaseModel, tokens: Tensor) -> str:
    """Compare a batch whose second row is left-padded with each row alone."""
    rows, attention, positions = _padded(base, tokens)
    ours = base.logits(base.plain(rows, attention, positions))
    return _judge(base, tokens, ours, 0, "gives other logits to a text that is padded on the left")


def _cache(base: BaseModel, tokens: Tensor) -> str:
    """Compare texts processed in parts, with one prompt for two continuations, with each text in one pass."""
    rows, attention, positions = _padded(base, tokens)
    cache, prompt = needs("transformers").DynamicCache(), LENGTH // 2
    parts = [base.plain(rows[:, :prompt], attention[:, :prompt], positions[:, :prompt], cache)]
    cache.batch_repeat_interleave(2)
    rows, attention, positions = (x.repeat_interleave(2, 0) for x in (rows, attention, positions))
    for first, last in ((prompt, prompt + 1), (prompt + 1, LENGTH)):
        piece = slice(first, last)
        parts.append(base.plain(rows[:, piece], attention[:, :last], positions[:, piece], cache))
    ours = base.logits(torch.cat(parts[1:], 1))[1::2]
    return _judge(base, tokens, ours, prompt, "gives other logits to a text that is read in parts, through a cache")


def _padded(base: BaseModel, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens, attention, positions) [2, L]: the text, and its end behind padding."""
    rows = torch.cat((tokens, tokens))
    attention = torch.ones_like(rows, dtype=torch.bool)
    rows[1, :PADDING], attention[1, :PADDING] = base.pad_id, False
    return rows, attention, positions_of(attention)


def _judge(base: BaseModel, tokens: Tensor, ours: Tensor, first: int, fault: str) -> str:
    """`fault` if logits [2, L − first, V] of the padded batch differ from those of the model for each row alone.

    Compared by the median: rounding may route single tokens of a mixture to other experts.
    """
    for row, start in enumerate((0, PADDING)):
        theirs = base.model(input_ids=tokens[:, start:], use_cache=False).logits[0, max(first - start, 0) :].float()
        row_logits = ours[row, max(start - first, 0) :].float()
        difference, size = float((row_logits - theirs).abs().median()), float(theirs.std())
        if not difference <= (1e-3 if _is_precise(ours) else 0.1) * max(size, 1e-6):
            return f"{fault} (by {difference:.2g}, where logits have a standard deviation of {size:.2g})"
    return ""


def _is_precise(values: Tensor) -> bool:
    return values.dtype in (torch.float32, torch.float64)


def _settings(base: BaseModel) -> str:
    """Settings of the configuration that may cause the difference, as ' (name, name)'."""
    values = base.model.config.to_dict()
    names = [k for k, v in values.items() if _SCALING.search(k) and not k.startswith("attn") and _is_factor(v)]
    return f" ({', '.join(sorted(names))})" if names else ""


def _is_factor(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value != 1
