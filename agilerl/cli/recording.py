"""What `agilerl data make` and `agilerl data show` do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from agilerl.api import load
from agilerl.cli.as_json import show
from agilerl.data.dataset import read_dataset
from agilerl.data.describe import describe, lines
from agilerl.data.recording import check_target
from agilerl.errors import ConfigError, unknown_choice
from agilerl.training.datasets import POLICIES, Maker

UNTRAINED = "random"  # the policy that needs no training


def make_data(
    env_id: str, policy: str, out: Path, rows: int, seed: int, noise: float, algo: str | None, settings: Sequence[str],
    imports: Sequence[str], as_json: bool,
) -> None:  # fmt: skip
    """Record a data set from a policy, and describe it."""
    check_target(out)
    options = {"--policy": policy, "--rows": rows, "--seed": seed}
    options |= {"--noise": noise} if noise else {}
    options |= {"--algo": algo} if algo else {}
    words = [str(word) for option in options.items() for word in option]
    words += [word for setting in settings for word in ("--set", setting)]
    words += [word for name in imports for word in ("--import", str(name))]
    command = shlex.join(["agilerl", "data", "make", env_id, *words])

    is_trained_here = policy in POLICIES and policy != UNTRAINED
    if (algo or settings) and not is_trained_here:
        raise ConfigError(f"--algo and --set train medium and expert; {policy} needs none. fix: leave them out.")
    maker = Maker(env_id, algo, seed, settings, partial(typer.echo, err=as_json))
    if policy in POLICIES:
        maker.make(policy, rows, out, noise=noise, about={"command": command})
    else:
        agent, name, about = _agent_of(policy, maker.env_id)
        maker.make(agent, rows, out, noise=noise, name=name, about={**about, "command": command})
    show_data(str(out), "data make" if as_json else None)


def _agent_of(policy: str, env_id: str) -> tuple[Any, str, dict[str, Any]]:
    """(best agent, name, attributes) of the run that `policy` names; ConfigError if it is not a run."""
    path = Path(policy)
    if not path.is_dir():
        raise ConfigError(
            f"there is no run directory {policy}, and "
            + unknown_choice("policy", policy, POLICIES, "runs/<env>/<algo>-<nnnn>")
        )
    run = load(path, "cpu")
    trained = run.manifest.environment
    if trained.name != env_id or trained.kwargs:
        keywords = f" with the keywords {dict(trained.kwargs)}" if trained.kwargs else ""
        raise ConfigError(
            f"{path} was trained in {trained.name}{keywords}, and the data set is to be of {env_id}. "
            f"fix: `agilerl data make {trained.name}`, with a run without keywords."
        )
    about = {"algo": run.manifest.algorithm.name, "preset": run.manifest.hash(), "run_seed": run.manifest.training.seed}
    return run.best, f"best of {'/'.join(path.resolve().parts[-2:])}", about


def show_data(file: str, as_json: str | None) -> None:
    """Describe a data set; `as_json`: the command that prints JSON, None for text."""
    facts = describe(read_dataset(file))
    show(as_json or "", as_json is not None, lines(facts, file), **facts)
