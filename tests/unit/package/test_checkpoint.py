"""The state tree comes back bit for bit, a failed write leaves the old file, and damage is always noticed."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl.core.checkpoint import decode_tree, encode_tree, load_tree, save_tree
from agilerl.core.files import write_atomic
from agilerl.errors import CorruptCheckpoint, RunError

TORCH_DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
NUMPY_DTYPES = [np.float32, np.float64, np.int64, np.int32, np.uint8, np.bool_, np.uint32, np.int16]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.tensor(draw(st.integers(0, 99))) + torch.arange(math.prod(shape)).reshape(shape)
    tensor = values.to(draw(st.sampled_from(TORCH_DTYPES)))
    return tensor.transpose(0, -1) if tensor.dim() > 1 and draw(st.booleans()) else tensor


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    return np.arange(math.prod(shape)).reshape(shape).astype(draw(st.sampled_from(NUMPY_DTYPES)))


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.builds(np.float32, st.integers(0, 9))
)
leaves = st.one_of(scalars, tensors(), arrays())
keys = st.one_of(st.text(max_size=6), st.integers(-5, 5))
trees = st.dictionaries(
    keys,
    st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(keys, inner, max_size=3),
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def same(a: Any, b: Any) -> bool:
    """Equal in type, structure and bits; NaN equals NaN and -0.0 differs from 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return repr(a) == repr(b)
    return bool(a == b)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(tree=trees)
def test_any_tree_comes_back_with_the_same_types_and_bits(tree: dict[Any, Any]) -> None:
    assert same(tree, decode_tree(encode_tree(tree)))


def test_file_round_trip_keeps_views_and_shared_storage_apart(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    path = tmp_path / "deep" / "agent.pt"  # the suffix means nothing; folders are made
    save_tree(path, {"a": base, "row": base[1], "transposed": base.T, "parameter": torch.nn.Parameter(base)})
    back = load_tree(path)
    assert torch.equal(back["transposed"], base.T)
    back["a"].zero_()
    assert torch.equal(back["row"], torch.tensor([3.0, 4.0, 5.0]))
    assert not back["parameter"].requires_grad


def test_keys_that_collide_when_joined_stay_apart() -> None:
    tree = {"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1), "__metadata__": torch.ones(2), "a.b#1": torch.ones(3)}
    assert same(tree, decode_tree(encode_tree(tree)))


def test_numpy_rng_state_survives() -> None:
    rng = np.random.default_rng(5)
    rng.random(3)
    other = np.random.default_rng(0)
    other.bit_generator.state = decode_tree(encode_tree({"rng": rng.bit_generator.state}))["rng"]
    assert rng.random() == other.random()


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", np.array(["a"]), torch.eye(2).to_sparse()])
def test_a_leaf_that_cannot_be_stored_is_named_by_its_place(value: Any) -> None:
    with pytest.raises(TypeError, match=r"tree\.outer\[1\].*fix:"):
        encode_tree({"outer": [1, value]})


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "state.safetensors"
    save_tree(path, {"version": 1})

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="disk full"):
        save_tree(path, {"version": 2})
    monkeypatch.undo()
    assert load_tree(path) == {"version": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]


def test_a_process_killed_in_the_middle_of_a_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save_tree(path, {"version": 1})
    child = os.fork()
    if child == 0:  # dies as a SIGKILL does: no clean-up runs
        os.replace = lambda *_: os._exit(9)  # type: ignore[assignment]
        save_tree(path, {"version": 2})
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert load_tree(path) == {"version": 1}


def test_every_changed_byte_is_noticed() -> None:
    tree = {"weight": torch.arange(12.0), "count": 7, "name": "x", "scale": float("inf")}
    data = encode_tree(tree)
    rng = np.random.default_rng(0)
    for position in {*range(64), *rng.integers(len(data), size=200).tolist(), len(data) - 1}:
        damaged = bytearray(data)
        damaged[position] ^= 1 << int(rng.integers(8))
        with contextlib.suppress(RunError):
            assert same(decode_tree(bytes(damaged)), tree), f"byte {position} changed the content silently"


@pytest.mark.parametrize("length", [0, 5, 8, 100, -1])
def test_a_truncated_file_is_corrupt_and_says_what_to_do(tmp_path: Path, length: int) -> None:
    path = tmp_path / "cut.pt"
    path.write_bytes(encode_tree({"weight": torch.ones(64)})[:length])
    with pytest.raises(CorruptCheckpoint, match=r"cut\.pt.*fix:"):
        load_tree(path)


def test_pickles_are_refused_by_name(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "new.pt")
    torch.save({"weight": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"a": 1}))
    for name in ("new.pt", "old.pt", "plain.pkl"):
        with pytest.raises(RunError, match=rf"{name} is a pickle; this package never reads pickles.*fix:"):
            load_tree(tmp_path / name)


def test_a_missing_file_and_a_foreign_file_are_told_apart(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with pytest.raises(RunError, match=r"no checkpoint at .*nothing\.pt"):
        load_tree(tmp_path / "nothing.pt")
    save_file({"weight": torch.ones(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(CorruptCheckpoint, match="another program"):
        load_tree(tmp_path / "foreign.safetensors")


def test_text_and_bytes_are_written_as_given(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a" / "b.txt", "grün\n")
    write_atomic(tmp_path / "a" / "c.bin", b"\x00\xff")
    assert (tmp_path / "a" / "b.txt").read_text(encoding="utf-8") == "grün\n"
    assert (tmp_path / "a" / "c.bin").read_bytes() == b"\x00\xff"
