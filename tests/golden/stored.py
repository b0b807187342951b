"""Stored values: one file per kind, one line per case, rewritten only with AGILERL_GOLDEN_UPDATE=1."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

IS_UPDATE = bool(os.environ.get("AGILERL_GOLDEN_UPDATE"))


def read(path: Path) -> dict[str, Any]:
    """The stored values of every case; of none where there is no file yet."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def write(path: Path, name: str, value: dict[str, Any], known: Iterable[str], depth: int = 1) -> None:
    """Replace the value of one case; cases that there are no longer go.

    Keys are sorted; what lies `depth` levels down is one line, so that a difference shows where it is.
    """
    kept = {k: v for k, v in read(path).items() if k in set(known)}
    kept[name] = {**value, "torch": torch.__version__}
    path.write_text(_lines(kept, depth) + "\n", encoding="utf-8")


def _lines(value: Any, depth: int) -> str:
    if depth == 0 or not isinstance(value, dict) or not value:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "{\n" + ",\n".join(f"{json.dumps(k)}:{_lines(value[k], depth - 1)}" for k in sorted(value)) + "\n}"
