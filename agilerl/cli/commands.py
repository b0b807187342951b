"""The table of commands: the module of each is loaded when the command is chosen, and not for the help of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import typer

# Command -> (module of `agilerl.cli` with its `app`, its line in the help).
COMMANDS = {
    "train": ("train", "Train a population on an environment."),
    "resume": ("train", "Continue a run from where it was saved."),
    "evaluate": ("evaluating", "Score the best agent of a run over whole episodes."),
    "export": ("evaluating", "Export the best policy of a run."),
    "list": ("listing", "List algorithms, environments, presets or runs."),
    "report": ("viewing", "Write the HTML report of a run."),
    "record": ("evaluating", "Film the best agent of a run; no display is needed."),
    "compare": ("viewing", "Compare runs by score, steps and time."),
    "doctor": ("doctor", "Check this machine and what is installed."),
    "watch": ("watching", "Show runs in the browser while they train."),
    "schedule": ("viewing", "Show how the winner's hyperparameters and network changed."),
    "importance": ("viewing", "Show which hyperparameters and mutations mattered."),
    "steer": ("steering", "Ask a running run for a change."),
    "optuna": ("sharing", "Write runs as studies of Optuna."),
    "push": ("sharing", "Push a run to the Hugging Face Hub."),
    "continue": ("train", "Begin a new run from the agents of an old one."),
    "config": ("configuring", "Translate, check and describe configurations."),
    "data": ("data", "Make and describe data sets."),
}


def later(module: str, function: str) -> Callable[..., Any]:
    """Return a function of a module of `agilerl.cli` that is loaded when it is called.

    For what needs torch or the configuration in a module whose options, help and completion do without.
    """
    return lambda *args, **kwargs: getattr(import_module(f"agilerl.cli.{module}"), function)(*args, **kwargs)


@cache
def commands_in(module: str) -> dict[str, Any]:
    """Load a module of `agilerl.cli`; return its commands by name."""
    return dict(typer.main.get_group(import_module(f"agilerl.cli.{module}").app).commands)


class LazyCommands(Mapping[str, Any]):
    """The commands by name, loaded when one is read."""

    def __getitem__(self, name: str) -> Any:
        return commands_in(COMMANDS[name][0])[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)
