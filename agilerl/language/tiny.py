"""Small tokenizers and models, built locally: for tests, examples and first runs on a CPU."""

from __future__ import annotations

import os
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from agilerl.core import foreign
from agilerl.errors import ConfigError, unknown_choice
from agilerl.language import needs

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<bos>{{ message['role'] }}: {{ message['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<bos>assistant: {% endif %}"
)
"""A chat template in which each message begins with <bos> and its role and ends with <eos>."""

# Kind -> (configuration, model). Not qwen2: AutoTokenizer replaces the rules of a tokenizer in the same folder.
_KINDS = {"llama": ("LlamaConfig", "LlamaForCausalLM"), "qwen3": ("Qwen3Config", "Qwen3ForCausalLM")}


def tiny_tokenizer(texts_or_alphabet: str | Iterable[str], *, chat_template: str | None = None) -> Any:
    """A tokenizer with one token for each character.

    Tokens 0 to 3 are <pad>, <bos>, <eos> and <unk>, for unknown characters. The characters follow in the order of their
    code points. Nothing is added before or after a text.

    Args:
        texts_or_alphabet: its characters as one string, or texts that contain them all.
        chat_template: None, or a template of transformers; it adds the letters of roles, ":" and " " to the vocabulary.

    Raises:
        ConfigError: no characters; transformers is not installed.
    """
    transformers, tokenizers = needs("transformers", "tiny_tokenizer"), needs("tokenizers", "tiny_tokenizer")
    characters = set("".join([texts_or_alphabet] if isinstance(texts_or_alphabet, str) else texts_or_alphabet))
    if not characters:
        raise ConfigError("tiny_tokenizer needs at least one character; got none. fix: pass its alphabet as a string.")
    if chat_template is not None:
        characters |= set(string.ascii_lowercase + ": ")
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *sorted(characters)])}
    rules = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    rules.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), behavior="isolated")
    rules.decoder = tokenizers.decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=rules, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def tiny_base(
    folder: str | os.PathLike[str],
    tokenizer: foreign.Tokenizer,
    *,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    kind: str = "llama",
    seed: int = 0,
    context: int = 256,
) -> Path:
    """Write a small model with random weights as a folder that transformers and `load_tokenizer` read.

    The same arguments write the same bytes. Torch's global random state is left as it was.

    Args:
        folder: the target; created if missing. Existing files are replaced.
        tokenizer: saved with the model, which has one embedding per token.
        hidden_size, layers, heads: of the transformer; the feed-forward layers have 4·hidden_size.
        kind: "llama" or "qwen3".
        seed: of the weights.
        context: maximum number of tokens.

    Returns:
        The folder: config.json, generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json.

    Raises:
        ConfigError: an unknown kind, sizes that do not fit, or transformers is not installed.
    """
    transformers = needs("transformers", "tiny_base")
    if kind not in _KINDS:
        raise ConfigError(unknown_choice("kind of model", kind, _KINDS))
    if min(hidden_size, layers, heads, context) < 1 or hidden_size % (2 * heads):
        raise ConfigError(
            "hidden_size must be a positive multiple of 2·heads, layers and context positive; got "
            f"hidden_size={hidden_size}, heads={heads}, layers={layers}, context={context}. "
            f"fix: hidden_size={2 * max(heads, 1) * max(hidden_size // (2 * max(heads, 1)), 1)}."
        )
    config_name, model_name = _KINDS[kind]
    config = getattr(transformers, config_name)(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden_size // heads,
        max_position_embeddings=context,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        architectures=[model_name],
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, model_name)(config)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.float().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})  # save_pretrained shows a progress bar
    config.save_pretrained(path)
    model.generation_config.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
