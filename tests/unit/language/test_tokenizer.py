"""Tokenizers: read as they were saved, told apart by what they do; tiny ones and tiny models made in this process."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agilerl.errors import ConfigError, RunError
from agilerl.language import check_fingerprint, fingerprint, load_tokenizer, needs, tiny_base, tiny_tokenizer
from agilerl.language.tiny import CHAT_TEMPLATE
from agilerl.language.tokenizer import difference_to_file, eos_id, is_tokenizer_of, pad_id

transformers = pytest.importorskip("transformers")


def saved(folder: Path, model_type: str = "llama", **changes: Any) -> Any:
    tokenizer = tiny_tokenizer("0123456789+= ?aW")
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    return tokenizer


def test_a_character_is_a_token_and_comes_back_as_it_was() -> None:
    tokenizer = tiny_tokenizer(["12+", "=3 \n"])
    assert tokenizer.encode("12 +\n=3") == [7, 8, 5, 6, 4, 10, 9]  # after the four special ones, by code point
    assert tokenizer.decode([7, 8, 5, 6, 4, 10, 9]) == "12 +\n=3"
    assert tokenizer.encode("1x") == [7, tokenizer.unk_token_id]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, len(tokenizer)) == (0, 1, 2, 11)


def test_an_alphabet_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one character"):
        tiny_tokenizer([])


def test_a_tokenizer_is_read_as_it_was_saved_whatever_the_config_beside_it_says(tmp_path: Path) -> None:
    """AutoTokenizer takes the rules of the family of qwen2 instead, and drops the spaces."""
    tokenizer = saved(tmp_path, "qwen2")
    replaced = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert replaced.encode("1 + 2") != tokenizer.encode("1 + 2")  # the trap is there
    loaded = load_tokenizer(tmp_path)
    assert loaded.encode("1 + 2") == tokenizer.encode("1 + 2")
    assert loaded.decode(loaded.encode("1 + 2")) == "1 + 2"
    assert fingerprint(loaded) == fingerprint(tokenizer)


def test_a_replaced_tokenizer_is_refused_by_its_fingerprint_and_by_its_file(tmp_path: Path) -> None:
    known = fingerprint(saved(tmp_path, "qwen2"))
    replaced = transformers.AutoTokenizer.from_pretrained(tmp_path)
    check_fingerprint(load_tokenizer(tmp_path), known, "here")
    with pytest.raises(RunError, match=r"runs/a: the tokenizer is not the one .*AutoTokenizer may replace"):
        check_fingerprint(replaced, known, "runs/a")
    assert "it splits 'What is 12 + 7?" in difference_to_file(replaced)
    assert difference_to_file(load_tokenizer(tmp_path)) == ""


def test_what_was_loaded_is_compared_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, "qwen2")
    present = needs("transformers")  # other tests import it anew
    monkeypatch.setattr(present, "PreTrainedTokenizerFast", present.AutoTokenizer)
    with pytest.raises(RunError, match=r"is not the one of its tokenizer\.json: it splits"):
        load_tokenizer(tmp_path)


def test_a_fingerprint_tells_what_would_change_what_a_model_reads() -> None:
    def print_of(**changes: Any) -> str:
        tokenizer = tiny_tokenizer("0123456789+= ")
        for name, value in changes.items():
            setattr(tokenizer, name, value)
        return fingerprint(tokenizer)

    prints = [
        print_of(),
        print_of(chat_template=CHAT_TEMPLATE),
        print_of(eos_token="<bos>"),
        print_of(pad_token="<eos>"),
        fingerprint(tiny_tokenizer("0123456789+=-")),
        fingerprint(tiny_tokenizer("0123456789+=")),
    ]
    assert len(set(prints)) == len(prints)
    assert print_of() == prints[0]
    assert print_of(padding_side="left") == prints[0]  # who pads says on which side


def test_a_tokenizer_without_padding_pads_with_its_end_of_sequence(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path, pad_token=None)
    assert tokenizer.pad_token_id is None
    assert pad_id(tokenizer) == eos_id(tokenizer) == 2
    loaded = load_tokenizer(tmp_path)
    assert loaded.pad_token_id == loaded.eos_token_id == 2
    assert fingerprint(loaded) == fingerprint(tokenizer)


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path, pad_token=None, eos_token=None)
    with pytest.raises(ConfigError, match="no end of sequence"):
        load_tokenizer(tmp_path)
    for asks in (pad_id, eos_id):
        with pytest.raises(ConfigError, match="end of sequence"):
            asks(tokenizer)


@pytest.mark.parametrize("path", ["./nothing", "/tmp/no/such/folder", "a/b/c", "name with spaces", Path("nothing")])
def test_what_is_no_folder_and_no_id_is_refused_without_asking_anybody(path: Any) -> None:
    with pytest.raises(RunError, match="no folder, and no id of a hub"):
        load_tokenizer(path)


def test_folders_without_a_tokenizer_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    saved(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_tiny_base_is_the_same_bytes_for_the_same_seed_and_loads_by_the_usual_way(kind: str, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer("0123456789+=", chat_template=CHAT_TEMPLATE)
    torch.manual_seed(5)
    state = torch.get_rng_state()

    def digests(folder: str, seed: int) -> dict[str, str]:
        made = tiny_base(tmp_path / folder, tokenizer, hidden_size=16, layers=1, heads=2, kind=kind, seed=seed)
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(made.iterdir())}

    first, again, other = digests("a", 3), digests("b", 3), digests("c", 4)
    assert torch.equal(torch.get_rng_state(), state)
    assert first == again
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= first.keys()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    stored = load_file(tmp_path / "a" / "model.safetensors")
    assert all(torch.equal(stored.pop(name), tensor) for name, tensor in model.state_dict().items())
    assert not stored
    assert model.get_input_embeddings().weight.shape == (len(tokenizer), 16)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert fingerprint(load_tokenizer(tmp_path / "a")) == fingerprint(tokenizer)


def test_sizes_and_kinds_of_tiny_bases_are_checked(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer("01")
    with pytest.raises(ConfigError, match=r"unknown kind of model 'lama'\. Did you mean 'llama'"):
        tiny_base(tmp_path, tokenizer, kind="lama")
    with pytest.raises(ConfigError, match=r"multiple of 2·heads.*fix: hidden_size=16"):
        tiny_base(tmp_path, tokenizer, hidden_size=18, heads=4)


def test_what_is_not_installed_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r'adapters: peft is not installed\. fix: pip install "agilerl\[llm\]"'):
        needs("peft", "adapters")


def test_tokenizers_that_differ_in_their_padding_alone_are_one(tmp_path: Path) -> None:
    """`tokenizer.pad_token = tokenizer.eos_token` is a line of most scripts."""
    tokenizer = saved(tmp_path)
    known = fingerprint(tokenizer)
    for pad in ("<eos>", "<unk>", "<pad>"):
        tokenizer.pad_token = pad
        assert is_tokenizer_of(tokenizer, known)
        check_fingerprint(tokenizer, known, "here")
        assert is_tokenizer_of(load_tokenizer(tmp_path), fingerprint(tokenizer))
    assert not is_tokenizer_of(tiny_tokenizer("0123456789+=-"), known)
    tokenizer.eos_token = "<bos>"
    assert not is_tokenizer_of(tokenizer, known)
    tokenizer.eos_token, tokenizer.chat_template = "<eos>", CHAT_TEMPLATE
    assert not is_tokenizer_of(tokenizer, known)
