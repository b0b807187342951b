"""Names of the files in a run directory, and what tells a run from a group of seeds."""

from __future__ import annotations

import os
from pathlib import Path

RUN, CONFIG, LINEAGE, METRICS = "run.json", "config.yaml", "evolution.jsonl", "metrics.csv"
GROUP, REQUESTS = "group.json", "requests"


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a run directory."""
    return (Path(path) / RUN).is_file()


def is_group(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is the folder of a group of seeds."""
    return (Path(path) / GROUP).is_file()
