"""Tokenizers: faithful loading, and fingerprints.

`AutoTokenizer` chooses a class by the `model_type` of config.json, and some classes build their own rules of splitting
and joining instead of reading those of tokenizer.json: a folder whose config says qwen2 can lose its spaces without an
error and with the same number of tokens. So tokenizer.json is read directly, and the loaded tokenizer is compared with
the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from agilerl.core import foreign
from agilerl.errors import ConfigError, RunError, warn_once
from agilerl.language import needs

PROBES = (
    "What is 12 + 7? Answer: 19.",
    "  two  spaces,\n\na tab\tand a line\r\n",
    "if (x[0] != 1) { return -3.14e-10; } // don't",
    "naïve café, Ångström, 東京, 🙂",
    "<think>\nso 007 * 8 = 056\n</think><answer>56</answer>",
)
"""Texts for the comparison of tokenizers: digits, white space, code, non-ASCII letters, tags."""

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


def load_tokenizer(path: str | os.PathLike[str]) -> Any:
    """Load a tokenizer from a local folder or by hub id.

    tokenizer.json is preferred, and is not passed to a class that replaces its rules. Only without that file the class
    is chosen like `transformers.AutoTokenizer` does. A tokenizer without a padding token pads with its end of sequence.
    No code of the folder is run.

    Args:
        path: a folder; or "name" or "owner/name" if no such folder exists, which may use the network.

    Raises:
        RunError: a missing folder, a folder without a tokenizer, or a loaded tokenizer that differs from its file.
        ConfigError: the tokenizer has neither padding nor end of sequence; transformers is not installed.
    """
    transformers = needs("transformers", "load_tokenizer")
    text = os.fspath(path)
    local = Path(text).is_dir()
    if not local and (isinstance(path, os.PathLike) or text.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(text)):
        raise RunError(f"{text} is no folder, and no id of a hub. fix: a folder with tokenizer.json, or 'owner/name'.")
    source = os.path.abspath(text) if local else text
    tokenizer: Any = None
    problem = ""
    if not local or Path(source, "tokenizer.json").is_file():
        tokenizer, problem = _loaded(transformers.PreTrainedTokenizerFast, source, local)
    if tokenizer is None and not (local and problem):
        tokenizer, problem = _loaded(transformers.AutoTokenizer, source, local)
    if tokenizer is None:
        fix = "save one there with tokenizer.save_pretrained(folder)"
        raise RunError(f"{text} holds no tokenizer that can be read ({problem}). fix: {fix}.")
    fault = difference_to_file(tokenizer)
    if fault:
        raise RunError(f"{text}: the tokenizer that was loaded is not the one of its tokenizer.json: {fault}.")
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ConfigError(
                f"{text}: the tokenizer has no end of sequence, so nothing says where a completion ends. "
                "fix: set tokenizer.eos_token to a token that it has, and save it again."
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _loaded(cls: Any, source: str, local: bool) -> tuple[Any, str]:
    """(tokenizer, "") or (None, reason)."""
    try:
        return cls.from_pretrained(source, local_files_only=local, trust_remote_code=False), ""
    except Exception as error:  # the library raises plain Exception for a damaged file, OSError for a missing one
        return None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def difference_to_file(tokenizer: foreign.Tokenizer) -> str:
    """Difference in splitting or joining `PROBES` between a tokenizer and its tokenizer.json; "" if there is none.

    Also "" if it was not loaded from a folder with such a file.
    """
    file = Path(str(foreign.name_or_path(tokenizer) or "."), "tokenizer.json")
    if not foreign.name_or_path(tokenizer) or not file.is_file():
        return ""
    try:
        stored = needs("tokenizers").Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception for everything
        return f"{file} cannot be read ({' '.join(str(error).split())[:200]})"
    stored.no_truncation()
    stored.no_padding()
    for probe in PROBES:
        ids, expected = _encode(tokenizer, probe), list(stored.encode(probe, add_special_tokens=False).ids)
        if ids != expected:
            return f"it splits {probe!r} into {len(ids)} tokens {ids[:8]}, the file into {len(expected)} {expected[:8]}"
        text, meant = _decode(tokenizer, ids), stored.decode(ids, skip_special_tokens=False)
        if text != meant:
            return f"it joins the tokens of {probe!r} to {text!r}, the file to {meant!r}"
    return ""


def warn_if_replaced(tokenizer: foreign.Tokenizer) -> None:
    """Warn, once per folder, of a tokenizer that differs from its file."""
    if difference := difference_to_file(tokenizer):
        warn_once(
            f"tokenizer {tokenizer.name_or_path}",
            f"the tokenizer does not do what the tokenizer.json that it came from says: {difference}. "
            "fix: load it with agilerl.language.load_tokenizer; AutoTokenizer may replace its rules.",
            stacklevel=5,
        )


def pad_id(tokenizer: foreign.Tokenizer) -> int:
    """The padding token: the tokenizer's, else its end of sequence.

    Raises:
        ConfigError: it has neither.
    """
    token = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if token is None:
        what = "the tokenizer has neither a token for padding nor an end of sequence"
        raise ConfigError(f"{what}. fix: set tokenizer.eos_token to a token that it has.")
    return int(token)


def eos_id(tokenizer: foreign.Tokenizer) -> int:
    """The token that ends a completion.

    Raises:
        ConfigError: the tokenizer has none.
    """
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            "the tokenizer has no end of sequence, so nothing says where a completion ends. "
            "fix: set tokenizer.eos_token to a token that it has."
        )
    return int(tokenizer.eos_token_id)


def special_ids(tokenizer: foreign.Tokenizer) -> set[int]:
    """Special tokens of the tokenizer: those with a role, and those added as special."""
    added = {int(number) for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | set(map(int, tokenizer.all_special_ids))


def fingerprint(tokenizer: foreign.Tokenizer) -> str:
    """Fingerprint of 64 hexadecimal digits, equal for tokenizers that split, join, frame and pad texts alike.

    SHA-256 over tokens and texts of `PROBES`, the number of tokens, the special tokens, and the chat template. Padding
    is `pad_id`, so that a fallback to the end of sequence does not change it. `is_tokenizer_of` ignores differences in
    padding.
    """
    return _fingerprint(tokenizer, pad_id(tokenizer))


def is_tokenizer_of(tokenizer: foreign.Tokenizer, known: str) -> bool:
    """Whether `known` is the fingerprint of this tokenizer, with any of its special tokens as padding.

    Padding is masked, so that `tokenizer.pad_token = tokenizer.eos_token` changes no result.
    """
    pads = {pad_id(tokenizer), *special_ids(tokenizer)}
    return any(_fingerprint(tokenizer, pad) == known for pad in sorted(pads, key=lambda pad: pad != pad_id(tokenizer)))


def _fingerprint(tokenizer: foreign.Tokenizer, pad: int) -> str:
    tokens = [_encode(tokenizer, probe) for probe in PROBES]
    facts = {
        "tokens": tokens,
        "framed": [list(map(int, tokenizer.encode(probe))) for probe in PROBES],
        "texts": [_decode(tokenizer, ids) for ids in tokens],
        "size": len(tokenizer),
        "special": [tokenizer.bos_token_id, tokenizer.eos_token_id, pad, tokenizer.unk_token_id],
        "chat_template": tokenizer.chat_template,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def check_fingerprint(tokenizer: foreign.Tokenizer, known: str, where: str) -> None:
    """Reject a tokenizer that differs from the earlier one.

    Args:
        tokenizer: the tokenizer to use.
        known: `fingerprint` of the earlier one.
        where: the source of `known`, for the message: a checkpoint's path.

    Raises:
        RunError: they differ.
    """
    if not is_tokenizer_of(tokenizer, known):
        current = fingerprint(tokenizer)
        raise RunError(
            f"{where}: the tokenizer is not the one that was trained with: expected fingerprint {known[:12]}, "
            f"got {current[:12]} ({type(tokenizer).__name__}, {len(tokenizer)} tokens). "
            "fix: load it with agilerl.language.load_tokenizer from the folder of that time; "
            "transformers.AutoTokenizer may replace a tokenizer's rules by those of the model's family."
        )


def _encode(tokenizer: foreign.Tokenizer, text: str) -> list[int]:
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def _decode(tokenizer: foreign.Tokenizer, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
