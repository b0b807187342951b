"""A run that goes on: its record, the files around it, and the loop from there."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agilerl.checkpoint import write_atomic
from agilerl.config import Manifest, apply_overrides, dump_yaml, manifest_from
from agilerl.errors import ConfigError, RunError
from agilerl.runs.checkpoints import set_aside
from agilerl.runs.directory import RunDirectory
from agilerl.runs.store import RunStore
from agilerl.telemetry import Sink
from agilerl.training.launch import Run, Setup, resolve_device, run_setup


def resume_training(
    path: str | os.PathLike[str],
    *,
    steps: int | None = None,
    env: Any = None,
    verbose: bool = True,
    sinks: Iterable[Sink] = (),
    strict_replay: bool = False,
    carry_envs: bool | None = None,
    tensorboard: bool = False,
    track: bool = False,
    argv: Sequence[str] | None = None,
) -> Run:
    """Go on with the run at `path` from its newest checkpoint that is whole, as if it had never stopped.

    Everything comes from the run's record: configuration, seed, device, learner, back end, threads. A run that was
    killed before its first checkpoint begins again, from its configuration and seed, with the same result.

    Args:
        steps: a new budget of environment steps per member; the run then equals none that never stopped.
        env: the environment, of a run that was given one; else it is made by its id.
        verbose, sinks, tensorboard, track: as for `run_training`.
        strict_replay: refuse where a part of the replay is damaged, instead of going on without it.
        carry_envs: switches that option of the run, from here on (and says that the run then equals none that never
            stopped); None follows the record.

    Raises:
        RunError: no run there, another process trains there, or something that the run needs is missing.
    """
    folder = Path(path)
    if not (folder / "checkpoints").is_dir():
        RunDirectory.open(folder)
    with contextlib.closing(RunStore(folder, strict_replay=strict_replay)) as store:
        manifest, start = _record(folder, store)
        if bool(start["env_given"]) != (env is not None):
            raise RunError(
                f"{folder} was trained in an environment that was handed over. fix: agilerl.resume(path, env=...)."
                if start["env_given"]
                else f"{folder} was trained in {manifest.environment.name}, made by its id. fix: leave env out."
            )
        recorded = manifest
        asked = {"training.max_steps": steps, "training.carry_envs": carry_envs}
        changed = {name: value for name, value in asked.items() if value is not None}
        manifest = apply_overrides(manifest, changed, "resume")
        arguments = tuple(sys.argv if argv is None else argv)
        evolution, device = bool(start["evolution"]), resolve_device(str(start["device"]))
        setup = Setup(manifest, env, device, verbose, evolution, tuple(sinks), tensorboard, track, arguments)
        store.facts = setup.facts()
        directory = RunDirectory(folder)
        store.notes += _mend(directory, setup, recorded)
        return run_setup(setup, directory, store)


def _record(folder: Path, store: RunStore) -> tuple[Manifest, Mapping[str, Any]]:
    """(configuration, how it was started) of a run, from its checkpoint; without one from its files."""
    if store.saved is not None:
        body = store.saved.body
        if "start" not in body:
            raise RunError(
                f"{folder} was written by train_off_policy(resume=...), which was given its parts. "
                "fix: run that script again."
            )
        return manifest_from(json.loads(body["config"]), str(store.saved.path)), body["start"]
    directory = RunDirectory.open(folder)
    manifest, facts = directory.manifest(), directory.facts()
    if manifest.hash() != facts.get("manifest_hash"):
        raise RunError(
            f"{folder} has no checkpoint, and its config.yaml is not the one that it began with. fix: train again."
        )
    return manifest, {name: facts.get(name, False) for name in ("evolution", "device", "env_given")}


def _mend(directory: RunDirectory, setup: Setup, recorded: Manifest) -> list[str]:
    """config.yaml and run.json as the checkpoint has them; what was damaged."""
    notes, manifest = [], setup.manifest
    try:
        found = directory.manifest().hash()
    except (ConfigError, OSError, ValueError):
        found = ""
    if found != manifest.hash():
        if found != recorded.hash():
            notes.append("config.yaml was damaged or missing; it was written anew from the checkpoint.")
        write_atomic(directory.path / "config.yaml", dump_yaml(manifest))
    try:
        directory.facts()
    except RunError:
        path = directory.path / "run.json"
        aside = f"; the old one is {set_aside(path).name}" if path.exists() else ""
        notes.append(f"run.json was damaged or missing; it was written anew{aside}.")
        directory.begin(
            manifest,
            argv=setup.argv,
            evolution=setup.evolution,
            device=setup.device,
            env_given=setup.env is not None,
        )
    directory.update(
        status="running",
        algo=manifest.algorithm.name,
        env_id=manifest.environment.name,
        seed=manifest.training.seed,
        manifest_hash=manifest.hash(),
        resumed=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    return notes
