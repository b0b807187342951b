"""The options of experiment trackers: `--track` alone is W&B, `--track NAME` another tracker."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from agilerl.cli.messages import UsageError
from agilerl.errors import ConfigError, nearest, unknown_choice

# As in `agilerl.telemetry.TRACKERS`, which imports torch.
NAMES, DEFAULT = ("wandb", "mlflow", "trackio"), "wandb"
CLOSE = 0.7  # similarity from which a word after --track is taken for a mistyped name


def tracker_names(incomplete: str) -> list[str]:
    """Names of trackers, for shell completion."""
    return [name for name in NAMES if name.startswith(incomplete)]


def with_tracker(words: list[str]) -> list[str]:
    """The words of a command line in which `--track` has a value; the word after it is one if it is like a name."""
    completed: list[str] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word == "--":
            return [*completed, word, *remaining]
        if word == "--track":
            value = remaining.pop(0) if remaining and nearest(remaining[0], NAMES, similarity=CLOSE) else DEFAULT
            word = f"--track={value}"
        completed.append(word)
    return completed


class TrackedCommand(TyperCommand):
    """A command whose `--track` takes an optional name; Typer has no options with optional values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Extend the base method: see `with_tracker`. A word too many after `--track` is an unknown tracker."""
        words = list(args)
        try:
            parsed: list[str] = super().parse_args(ctx, with_tracker(words))
        except UsageError as error:
            after = [word for track, word in pairwise(words) if track == "--track"]
            extra = re.search(r"unexpected extra argument\S* \((.*)\)", error.format_message())
            unknown = [word for word in after if extra is not None and word in extra[1].split()]
            if not unknown:
                raise
            raise UsageError(unknown_choice("tracker", unknown[0], NAMES), ctx) from None
        return parsed


def chosen_tracker(track: str | None, no_track: bool) -> str | None:
    """The tracker that a resumed run is asked for: a name, "" for none, None for that of the run.

    Raises:
        ConfigError: both.
    """
    if track is not None and no_track:
        raise ConfigError("--track and --no-track exclude each other. fix: one of the two.")
    return "" if no_track else track


Tracker = Annotated[
    str | None,
    typer.Option(
        "--track",
        metavar="[wandb|mlflow|trackio]",
        autocompletion=tracker_names,
        help="Log to an experiment tracker; without a name to Weights & Biases.",
    ),
]
NoTrack = Annotated[
    bool, typer.Option("--no-track", help="Log to no tracker; default: the one that the run began with, if any.")
]
