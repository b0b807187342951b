"""Comparison of a base, as it is run here, with the model's own forward pass.

Every causal language model of transformers has a `forward` that returns logits. Here the decoder and the output layer
run separately, on left-padded prompts and through a key-value cache. That is wrong for some families: logits that are
scaled or capped, recurrent states that padding changes. So each base is checked on one short text when it is loaded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agilerl.errors import ConfigError
from agilerl.language import needs
from agilerl.language.padding import positions_of
from agilerl.language.tokenizer import special_ids

if TYPE_CHECKING:
    from agilerl.language.base import BaseModel

TEXT = "What is 12 + 7? 19."
LENGTH = 8
"""Tokens of the probe."""
PADDING = 3
"""Tokens of padding before the second row of the probe."""
LARGE = 100.0
"""Largest logit of the second probe: a cap at 30 changes it, but not logits around 0."""
FIX = "fix: a model of the Llama, Qwen, Mistral, Phi or GPT-2 families."
_SCALING = re.compile(r"logit|soft_?cap|lm_head_mult")


def check_parity(base: BaseModel, source: str) -> None:
    """Compare the logits of `base` with those of its model on one text.

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

    def enlarge(layer: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
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


def _is_factor(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value != 1
