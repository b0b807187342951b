"""Trees of plain state as safetensors files, written atomically. Pickles are never read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save

from agilerl.core.files import write_atomic
from agilerl.core.hostile import read_regular
from agilerl.errors import CorruptCheckpoint, RunError

FORMAT = 1
_FORMAT_KEY, _TREE_KEY, _DIGEST_KEY = "agilerl.format", "agilerl.tree", "agilerl.tree.sha256"
_PICKLE_PROTOCOLS = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
_FIX = "fix: use an older checkpoint, or train again; the file cannot be repaired."


def save_tree(path: str | os.PathLike[str], tree: Mapping[str, Any]) -> None:
    """Write nested dicts, lists and tuples of tensors, arrays, numbers, strings and None as one safetensors file.

    Args:
        path: the file, with any suffix; replaced atomically.
        tree: dictionary with str or int keys. Leaves: torch tensors (saved as contiguous CPU copies, without
            gradient), numpy arrays and scalars, int, float (also nan and inf), bool, str, None.

    Raises:
        TypeError: a leaf or key of another type, named by its place in the tree.
    """
    write_atomic(path, encode_tree(tree))


def load_tree(path: str | os.PathLike[str]) -> dict[Any, Any]:
    """Read what `save_tree` wrote: the same structure, types and bits, tensors on the CPU.

    Raises:
        RunError: there is no such file, or it is a pickle.
        CorruptCheckpoint: the content does not agree with its checksums.
    """
    source = Path(path)
    try:
        data = read_regular(source)
    except FileNotFoundError:
        raise RunError(f"there is no checkpoint at {source}. fix: check the path; `save_tree` writes one.") from None
    except IsADirectoryError:
        raise RunError(f"{source} is a folder, not a checkpoint file. fix: name the file in it.") from None
    return decode_tree(data, str(source))


def encode_tree(tree: Mapping[str, Any]) -> bytes:
    """The bytes that `save_tree` writes."""
    if not isinstance(tree, Mapping):
        raise TypeError(f"a checkpoint must be a dictionary; got {type(tree).__name__}. fix: wrap it in one.")
    tensors: dict[str, torch.Tensor] = {}
    structure = json.dumps(_encode(tree, "tree", tensors), allow_nan=False, separators=(",", ":"))
    metadata = {_FORMAT_KEY: str(FORMAT), _TREE_KEY: structure, _DIGEST_KEY: _digest(structure.encode())}
    return _ordered(safetensors_save(tensors, metadata))


def _ordered(data: bytes) -> bytes:
    """The same file with a sorted header: the library writes its entries in random order."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    metadata = dict(sorted(header.pop("__metadata__").items()))
    entries = sorted(header.items(), key=lambda entry: (entry[1]["data_offsets"], entry[0]))
    text = json.dumps({"__metadata__": metadata, **dict(entries)}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def digest_tree(tree: Mapping[str, Any]) -> str:
    """sha256 of a tree's structure, numbers and tensors."""
    structure = json.dumps(_encode(tree, "tree", {}), allow_nan=False, separators=(",", ":"))
    return _digest(structure.encode())


def decode_tree(data: bytes, name: str = "checkpoint") -> dict[Any, Any]:
    """Decode the tree in `data`; `name` is for messages."""
    _refuse_pickle(data, name)
    metadata = _metadata(data, name)
    structure = metadata.get(_TREE_KEY, "")
    if metadata.get(_FORMAT_KEY) != str(FORMAT):
        other = f"checkpoint format {metadata.get(_FORMAT_KEY, 'none')}"
        raise CorruptCheckpoint(f"{name} has {other}; this version reads {FORMAT}. {_FIX}")
    if _digest(structure.encode()) != metadata.get(_DIGEST_KEY):
        raise CorruptCheckpoint(f"the structure stored in {name} does not match its checksum. {_FIX}")
    try:
        tensors = safetensors_load(data)
        tree = _decode(json.loads(structure), tensors)
    except (SafetensorError, ValueError, KeyError, TypeError, IndexError, RecursionError, OverflowError) as error:
        raise CorruptCheckpoint(f"{name} is damaged ({' '.join(str(error).split())[:200]}). {_FIX}") from error
    if not isinstance(tree, dict):
        raise CorruptCheckpoint(f"{name} does not hold a dictionary. {_FIX}")
    return tree


def _refuse_pickle(data: bytes, name: str) -> None:
    is_safetensors = data[8:9] == b"{"  # eight bytes of header length, then JSON
    if data[:4] == b"PK\x03\x04" or (data[:2] in _PICKLE_PROTOCOLS and not is_safetensors):
        raise RunError(
            f"{name} is a pickle; this package never reads pickles, because reading one runs code. "
            "fix: load it where it was made and save its tensors with agilerl.core.checkpoint.save_tree."
        )
    if not is_safetensors:
        raise CorruptCheckpoint(f"{name} is not a safetensors file, or it was cut off ({len(data)} bytes). {_FIX}")


def _metadata(data: bytes, name: str) -> dict[str, str]:
    """The header's string table; safetensors' own loader for bytes does not return it."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        return {str(key): str(value) for key, value in dict(header["__metadata__"]).items()}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptCheckpoint(f"the header of {name} is damaged, or another program wrote it. {_FIX}") from error


def _digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _tensor_digest(tensor: torch.Tensor) -> str:
    return _digest(tensor.reshape(-1).view(torch.uint8).numpy().data)


# A node of the structure is a JSON scalar (None, bool, int, str, finite float) or a list that starts with one of
# these tags: "d" dictionary of [key, node], "l" list, "t" tuple, "f" non-finite float, and for bulk data
# "T" tensor, "N" numpy array, "S" numpy scalar, each with (name, dtype, shape, sha256).
def _encode(value: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if np.isfinite(value) else ["f", repr(value)]
    if isinstance(value, torch.Tensor):
        return _store("T", value.detach(), place, tensors)
    if isinstance(value, (np.ndarray, np.generic)):
        return _store("S" if isinstance(value, np.generic) else "N", _from_numpy(value, place), place, tensors)
    if isinstance(value, Mapping):
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{place} has the key {key!r}; expected a str or an int. fix: rename the key.")
        return ["d", *([k, _encode(v, f"{place}.{k}", tensors)] for k, v in value.items())]
    if type(value) in (list, tuple):
        tag = "l" if type(value) is list else "t"
        return [tag, *(_encode(v, f"{place}[{i}]", tensors) for i, v in enumerate(value))]
    raise TypeError(
        f"{place} is a {type(value).__name__}, which a checkpoint cannot hold. "
        "fix: turn it into tensors, arrays, numbers, strings, lists and dictionaries."
    )


def _from_numpy(value: np.ndarray | np.generic, place: str) -> torch.Tensor:
    array = np.array(value, order="C", copy=True)
    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except TypeError as error:
        raise TypeError(f"{place} is an array of {array.dtype}; expected numbers. fix: convert it.") from error


def _store(tag: str, tensor: torch.Tensor, place: str, tensors: dict[str, torch.Tensor]) -> list[Any]:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"{place} is a sparse or quantised tensor. fix: make it dense with .to_dense().")
    name = place.removeprefix("tree.")
    if name in tensors or name == "__metadata__":  # keys may hold dots; the header reserves the other
        name = f"{name}#{len(tensors)}"
    copy = tensor.cpu().clone(memory_format=torch.contiguous_format)
    tensors[name] = copy.resolve_conj().resolve_neg().contiguous()
    return [tag, name, str(copy.dtype), list(copy.shape), _tensor_digest(tensors[name])]


def _decode(node: object, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(node, list):
        return node
    tag, *rest = node
    if tag == "d":
        return {key: _decode(child, tensors) for key, child in rest}
    if tag in ("l", "t"):
        children = [_decode(child, tensors) for child in rest]
        return children if tag == "l" else tuple(children)
    if tag == "f":
        return float(rest[0])
    if tag not in ("T", "N", "S"):
        raise ValueError(f"unknown node {tag!r}")
    name, dtype, shape, digest = rest
    tensor = tensors[name]
    if str(tensor.dtype) != dtype or list(tensor.shape) != shape or _tensor_digest(tensor) != digest:
        raise ValueError(f"{name} does not match its checksum")
    if tag == "T":
        return tensor
    array = tensor.numpy()
    return array if tag == "N" else array[()]
