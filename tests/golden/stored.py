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


def write(path: Path, name: str, value: dict[str, Any], known: Iterable[str]) -> None:
    """Replace the value of one case; cases that there are no longer go. Keys are sorted, one case is one line."""
    kept = {k: v for k, v in read(path).items() if k in set(known)}
    kept[name] = {**value, "torch": torch.__version__}
    lines = (
        f"{json.dumps(k)}:{json.dumps(kept[k], sort_keys=True, separators=(',', ':'), allow_nan=False)}"
        for k in sorted(kept)
    )
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
