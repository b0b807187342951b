"""Tokens that end a completion: the tokenizer's end of sequence, the end of a chat turn, those of generation_config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from agilerl.core import foreign
from agilerl.errors import warn_once
from agilerl.language import needs
from agilerl.language.tokenizer import eos_id, special_ids

_ANSWER = "7043"  # placeholder answer, to see what the template appends to it


def end_ids(tokenizer: foreign.Tokenizer, generation_config: Any = None) -> tuple[int, ...]:
    """All tokens that end a completion, the tokenizer's end of sequence first.

    Instruction-tuned models often end a turn with another token than `tokenizer.eos_token`: Gemma writes
    <end_of_turn>, Phi-3 <|end|>. Their `generation_config.eos_token_id` is a list; their chat template has the token.

    Args:
        generation_config: of the model; None: generation_config.json beside the tokenizer's files, if it exists.

    Raises:
        ConfigError: the tokenizer has no end of sequence.
    """
    config = _stored(tokenizer) if generation_config is None else generation_config
    value = config.get("eos_token_id") if isinstance(config, dict) else config.eos_token_id
    ends = [eos_id(tokenizer), *_of_generation(tokenizer, value)]
    turn = _turn_end(tokenizer, ends)
    return tuple(dict.fromkeys([*ends, *([] if turn is None else [turn])]))


def turn_end(tokenizer: foreign.Tokenizer) -> int:
    """The token that ends an answer in the chat template; the end of sequence if the template has none.

    Raises:
        ConfigError: the tokenizer has no end of sequence.
    """
    turn = _turn_end(tokenizer, end_ids(tokenizer))
    return eos_id(tokenizer) if turn is None else turn


def is_end(tokens: Tensor, ends: int | Sequence[int]) -> Tensor:
    """[...] bool: which of the tokens [...] end a completion."""
    first, *others = (ends,) if isinstance(ends, int) else ends
    mask: Tensor = tokens == first
    for end in others:
        mask = mask | (tokens == end)
    return mask


def _turn_end(tokenizer: foreign.Tokenizer, ends: Sequence[int]) -> int | None:
    """The first special token, or one of `ends`, that the chat template appends to an answer."""
    if not foreign.chat_template(tokenizer):
        return None
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    except Exception:  # a template for other roles; using it raises a named error
        return None
    _, answer, after = text.rpartition(_ANSWER)
    candidates = (special_ids(tokenizer) | set(ends)) - {tokenizer.unk_token_id}
    tokens = tokenizer.encode(after, add_special_tokens=False) if answer else []
    return next((int(token) for token in tokens if token in candidates), None)


def _of_generation(tokenizer: foreign.Tokenizer, value: Any) -> list[int]:
    """`eos_token_id` of a generation_config, without tokens that the tokenizer does not have.

    A single number is often the default of the model's class and a letter in the tokenizer: it counts only if it is a
    special token.
    """
    if value is None:
        return []
    if isinstance(value, int):
        if value in special_ids(tokenizer) or not 0 <= value < len(tokenizer):
            return [value] if 0 <= value < len(tokenizer) else []
        warn_once(
            f"eos_token_id {value}",
            f"generation_config.eos_token_id={value} is the token {tokenizer.decode([value])!r}, which is not special "
            f"to the tokenizer: it ends no completion, {tokenizer.eos_token!r} does. "
            f"fix: model.generation_config.eos_token_id = [{value}] if it does, tokenizer.eos_token_id if not.",
        )
        return []
    return [int(token) for token in value if 0 <= int(token) < len(tokenizer)]


def _stored(tokenizer: foreign.Tokenizer) -> dict[str, Any]:
    """generation_config.json of the tokenizer's source: its folder, or the cached files of its hub id."""
    source = str(foreign.name_or_path(tokenizer) or "")
    if not source:
        return {}
    file: Any = Path(source, "generation_config.json")
    if not Path(source).is_dir():
        try:
            file = needs("huggingface_hub").try_to_load_from_cache(source, "generation_config.json")
        except ValueError:  # neither a folder nor a hub id
            return {}
    if not isinstance(file, str | Path) or not Path(file).is_file():
        return {}
    try:
        config = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
