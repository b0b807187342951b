"""Seeds side by side: `agilerl train --seeds`, and `agilerl resume` of the folder that it makes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import typer

from agilerl.cli.as_json import print_json
from agilerl.core.importing import import_code
from agilerl.errors import ConfigError, NotAvailableYetError
from agilerl.telemetry.side_by_side import SideBySide
from agilerl.training.seeds import LOG, compared, train_group
from agilerl.views.report.compare import comparison

MAX_SEEDS = 10_000


def seeds_in(text: str) -> list[int]:
    """The seeds of "0-9", "3", or "0-4,7,10-12", in order.

    Raises:
        ConfigError: another text, a seed that stands twice, or too many.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last >= 2**63 or last - first >= MAX_SEEDS:
            raise ConfigError(f"--seeds: at most {MAX_SEEDS:,} numbers below 2**63; got {text!r}. fix: --seeds 0-9.")
        if last < first:
            raise ConfigError(f"--seeds takes ranges and numbers; got {text!r}. fix: --seeds 0-9, or --seeds 0,3,7.")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise ConfigError(f"--seeds {text} names seed {twice} twice. fix: name every seed once.")
    return seeds


def workers_in(text: str | None) -> int | str | None:
    """The number of processes of "auto" or a number; None without the option.

    Raises:
        ConfigError: another text, or a number below 1.
    """
    if text is None or text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"--workers takes a number of processes from 1 on; got {text!r}. fix: --workers auto.")
    return int(text)


def chosen_seed(seeds: Sequence[int], index: int) -> int:
    """The seed that a job of an array trains.

    Raises:
        ConfigError: an index outside of the seeds.
    """
    if not 0 <= index < len(seeds):
        raise ConfigError(f"--array-index {index} is none of the seeds. fix: an array of jobs 0-{len(seeds) - 1}.")
    return seeds[index]


def seeds_to_train(seeds: str | None, has_seed: bool, array_index: int | None) -> list[int]:
    """The seeds of --seeds, one of them for a job of an array; none without the option."""
    if seeds is None:
        if array_index is not None:
            raise ConfigError("--array-index chooses one of --seeds. fix: --seeds 0-9 --array-index 0.")
        return []
    if has_seed:
        raise ConfigError("--seed (or --set seed) and --seeds both name seeds. fix: one of the two.")
    several = seeds_in(seeds)
    return several if array_index is None else [chosen_seed(several, array_index)]


def train_side_by_side(
    group: Any,
    workers: int | str,
    quiet: bool,
    imports: Sequence[str],
    changes: Mapping[str, Any] | None = None,
    as_json: str | None = None,
) -> None:
    """Train what is left of a group, print how its runs compare, and exit with an error if one failed.

    Args:
        as_json: the name of the command, which prints JSON; None prints text.
    """

    missing = [name for name in group.settings["imports"] if name not in imports]
    if missing:  # code is never imported because a file names it
        options = " ".join(f"--import {shlex.quote(name)}" for name in missing)
        raise ConfigError(f"{group.path} was made with {options}. fix: repeat {options}.")
    result = train_group(group, workers, SideBySide(not quiet), partial(import_code, list(imports)), changes)
    lines = compared(group) if group.run_paths else []
    if as_json is not None:
        _print_group(as_json, group, result)
    for line in () if as_json is not None else lines:
        typer.echo(line)
    for seed, end in result.failed.items():
        typer.echo(f"seed {seed} failed: {end.error}", err=True)
        if end.traceback:
            typer.echo(f"its traceback is in {group.run_path(seed) / LOG}", err=True)
    if result.signal is not None:
        if as_json is None:
            typer.echo(f"resume  {result.command()}")
        raise typer.Exit(128 + result.signal)
    if result.failed:
        typer.echo(f"after solving that  {result.command()}", err=True)
        raise typer.Exit(2 if all(end.is_user_error for end in result.failed.values()) else 1)


def _print_group(name: str, group: Any, result: Any) -> None:
    """Print how the runs of a group ended and compare."""
    is_open = result.signal is not None or result.failed
    facts: dict[str, Any] = {"path": group.path, "runs": list(group.run_paths)}
    facts["status"] = "interrupted" if result.signal is not None else "failed" if result.failed else "done"
    facts["failed"] = {seed: str(end.error) for seed, end in result.failed.items()}
    facts["resume"] = result.command() if is_open else None
    compares = comparison(group.run_paths).as_dict() if group.run_paths else {"groups": [], "improvement": []}
    print_json(name, **facts, **compares)


def check_without_ray(ray: str | None, option: str) -> None:
    """Raise NotAvailableYetError for seeds side by side on Ray."""
    if ray is not None and ray != "none":
        raise NotAvailableYetError(
            f"{option} trains seeds in processes of this machine, and --ray is for the workers of one run. fix: a job "
            "per seed with --array-index, or leave --ray out."
        )
