"""What a run directory looks like from outside: names of files, keys and kinds in them, and sums of their tensors."""

from __future__ import annotations

import csv
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from cases import OF_TORCH, leaves, outline, rounded, weighed
from safetensors import safe_open

from agilerl.core.checkpoint import load_tree

LONG = 60  # characters from which a part that came before is named and not repeated


def structure(run: Path) -> dict[str, Any]:
    """Every file of a run with what is in it, without values; checkpoints but the newest by their names alone."""
    newest = max(path.name for path in (run / "checkpoints").iterdir())
    found = {}
    for path in sorted(p for p in run.rglob("*") if p.is_file()):
        is_older = path.parent.parent.name == "checkpoints" and path.parent.name != newest
        found[path.relative_to(run).as_posix()] = "file" if is_older else _content(path)
    return found


def listing(run: Path) -> dict[str, Any]:
    """`structure`, to be read: of members only the first, and a part that is like an earlier one as `= its place`."""
    known: dict[str, str] = {}
    found = {}
    for name, content in structure(run).items():
        if name.endswith("population.safetensors") and content != "file":
            content["tree"]["members"] = content["tree"]["members"][:1]
        found[name] = _shared(content, Path(name).name, known)
    return found


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            metadata = sorted(file.metadata())
            slices = ((k, file.get_slice(k)) for k in sorted(file.keys()))
            lines = [f"{k} {part.get_dtype()} {part.get_shape()}" for k, part in slices]
        on_disk = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        return {
            "metadata": metadata,
            "tensors on disk": f"{len(lines)}, {on_disk[:16]}",
            "tree": kinds(load_tree(path)),
        }
    text = path.read_text(encoding="utf-8") if path.suffix in (".json", ".jsonl", ".csv", ".yaml") else ""
    if path.suffix == ".json":
        body = json.loads(text.split("\n")[0]) if path.name == "manifest.json" else json.loads(text)
        # A commit where there is a repository, and as many arguments as the process got.
        body.pop("git", None)
        for part in (body, body.get("start", {})):
            part.pop("argv", None)
        return kinds(body)
    if path.suffix == ".yaml":
        return kinds(yaml.safe_load(text))
    if path.suffix == ".jsonl":
        return sorted({" ".join(json.loads(line)) for line in text.splitlines()})
    if path.suffix == ".csv":
        return next(csv.reader(text.splitlines()))
    return "file"


def kinds(tree: Any) -> Any:
    """The tree with the kind of every leaf instead of its value: `float32[4, 2]`, `int`, `str`, `None`."""
    if isinstance(tree, Mapping):
        return {str(k): kinds(v) for k, v in sorted(tree.items(), key=lambda item: str(item[0])) if k not in OF_TORCH}
    if isinstance(tree, list | tuple):
        parts = [kinds(value) for value in tree]
        is_uniform = len(parts) > 1 and isinstance(parts[0], str) and all(part == parts[0] for part in parts)
        return f"{parts[0]} x {len(parts)}" if is_uniform else parts
    if isinstance(tree, torch.Tensor | np.ndarray):
        return f"{str(tree.dtype).removeprefix('torch.')}{list(tree.shape)}"
    return "None" if tree is None else type(tree).__name__


def _shared(tree: Any, place: str, known: dict[str, str]) -> Any:
    if not isinstance(tree, dict | list):
        return tree
    text = json.dumps(tree, sort_keys=True)
    if len(text) > LONG:
        if text in known:
            return f"= {known[text]}"
        known[text] = place
    if isinstance(tree, dict):
        return {k: _shared(v, f"{place}/{k}", known) for k, v in tree.items()}
    return [_shared(v, f"{place}/{i}", known) for i, v in enumerate(tree)]


def trees(run: Path) -> dict[str, Any]:
    """The trees of the newest checkpoint and of the best policy, by file; clocks left out."""
    newest = max((run / "checkpoints").iterdir())
    files = [*sorted(newest.glob("*.safetensors")), run / "best" / "policy.safetensors"]
    found = {path.stem: load_tree(path) for path in files}
    for name in ("seconds", "cpu_seconds"):
        found["run"]["result"].pop(name)
    return found


def plain_values(run: Path) -> str:
    """sha256 of all that is no measured number: labels, counters, states of generators, seeds, shapes."""
    return hashlib.sha256("\n".join(outline(trees(run))).encode()).hexdigest()


def sums_by_part(run: Path) -> dict[str, float]:
    """Sums of the tensors of each part, such as `/population/members/0/networks/actor`, and of the fitnesses."""
    found: dict[str, float] = defaultdict(float)
    for place, value in leaves(trees(run)):
        if isinstance(value, torch.Tensor) or "/history/" in place:
            found["/".join(place.split("/")[:6])] += weighed(value)
    return {place: rounded(total) for place, total in found.items()}


def sha256_of(tree: Any) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
