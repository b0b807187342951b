"""The folder of a run: configuration, facts, the best policy, and the append-only lineage and metrics."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from agilerl.config import Manifest, apply_overrides, dump_yaml, load_manifest
from agilerl.core.env_ids import TEAM_PACKAGES, is_language_id, is_team_id
from agilerl.core.files import write_atomic
from agilerl.core.hostile import read_json
from agilerl.core.redaction import without_secrets
from agilerl.errors import ConfigError, RunError
from agilerl.runs.checkpoints import set_aside
from agilerl.runs.names import CONFIG, LINEAGE, METRICS, RUN, is_group, is_run, run_command
from agilerl.telemetry.files import CsvSink, JsonlSink, jsonable
from agilerl.telemetry.progress import ProgressSink
from agilerl.telemetry.record import BaseSink, GenerationRecord, RunPlan

PACKAGES = ("agilerl", "torch", "numpy", "gymnasium", "tensordict", "safetensors", "pydantic")
LANGUAGE_PACKAGES = ("transformers", "tokenizers", "peft", "reasoning-gym")


class RunDirectory:
    """`runs/<env>/<algo>-<nnnn>/`. Files are replaced atomically or only appended to."""

    def __init__(self, path: str | os.PathLike[str], parents: Iterable[Path] = ()) -> None:
        """Wrap an existing directory; see `create` and `open`.

        Args:
            parents: parent folders created for it, innermost first.
        """
        self.path, self._made = Path(path), list(parents)

    @classmethod
    def create(cls, out: str | os.PathLike[str], env_id: str, algo: str) -> RunDirectory:
        """Create the next free directory. `mkdir` ensures that two processes never get the same one."""
        folder = Path(out) / folder_name(env_id)
        created = [place for place in (folder, *folder.parents) if not place.exists()]
        return cls(next_folder(folder, algo.lower()), created)

    @classmethod
    def create_at(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """Create the directory `path` itself, which must not hold a run yet.

        Raises:
            RunError: there is a run, or the directory cannot be created.
        """
        folder = Path(path)
        if is_run(folder):
            raise RunError(f"there is a run at {folder} already. fix: `{run_command('resume', folder)}`.")
        created = [place for place in folder.parents if not place.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the run directory {folder} ({error.strerror}). fix: --out DIR.") from error
        return cls(folder, created)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """Open the run at `path`; RunError if it is not a run directory."""
        folder = Path(path)
        if not folder.exists():
            raise RunError(f"there is no run at {folder}. fix: check the path; `agilerl train` prints it.")
        if folder.is_file():
            fix = f"`agilerl train ENV_ID --from {folder}`, if it is a policy of another library"
            raise RunError(f"{folder} is a file, and a run is a directory. fix: {fix}.")
        if is_group(folder):
            raise RunError(f"{folder} holds runs of several seeds. fix: name one of them, {folder}/seed-<n>.")
        if not is_run(folder):
            raise RunError(f"{folder} is not a run directory (no run.json). fix: name runs/<env>/<algo>-<nnnn>.")
        return cls(folder)

    def discard(self) -> bool:
        """Delete the directory of a run that was rejected before it began; False if it holds any results."""
        results = [self.path / name for name in (LINEAGE, METRICS, "best")]
        if any(path.exists() for path in results) or any((self.path / "checkpoints").glob("*")):
            return False
        shutil.rmtree(self.path, ignore_errors=True)
        for folder in (self.path.parent, *self._made):
            with contextlib.suppress(OSError):  # not empty, or already removed
                folder.rmdir()
        return True

    def take_data(self, manifest: Manifest) -> Manifest:
        """Move the data set of the manifest into the directory; returns the manifest with its new path."""
        written = Path(str(manifest.training.dataset))
        target = self.path / written.name
        try:
            shutil.move(written, target)
        except OSError as error:
            self.discard()
            raise RunError(f"the data set cannot be kept in {self.path} ({error.strerror}). fix: out=DIR.") from error
        return apply_overrides(manifest, {"training.dataset": str(target)}, "train()")

    def with_own_data(self, manifest: Manifest, facts: Mapping[str, Any]) -> Manifest:
        """The manifest with the current path of the directory's data set, if the directory was moved."""
        name, recorded = facts.get("own_data"), manifest.training.dataset
        if not name or recorded is None or Path(recorded).name != name or Path(recorded).exists():
            return manifest
        return apply_overrides(manifest, {"training.dataset": str(self.path / name)}, "the run")

    def begin(self, manifest: Manifest, *, argv: Sequence[str] = (), **facts: Any) -> None:
        """Write config.yaml, and run.json with status "running"."""
        write_atomic(self.path / CONFIG, dump_yaml(manifest))
        host = {"system": platform.platform(), "cpus": os.cpu_count()}
        made_with = {
            "git": git_hash(),
            "versions": versions(manifest.environment.name, manifest.environment.backend),
            "host": host,
        }
        self._write({**running(manifest), "argv": list(argv), "started": now(), **made_with, **facts})

    def update(self, **facts: Any) -> None:
        """Replace some entries of run.json (a nested dictionary is merged)."""
        content = self.facts()
        for key, value in facts.items():
            old = content.get(key)
            content[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
        self._write(content)

    def finish(self, status: str, **facts: Any) -> None:
        """Record how the run ended: "done", "interrupted" or "failed"."""
        self.update(status=status, ended=now(), **facts)

    def facts(self) -> dict[str, Any]:
        """The content of run.json."""
        try:
            return dict(read_json(self.path / RUN))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{self.path / RUN} cannot be read ({error}). fix: name another run.") from error

    def manifest(self) -> Manifest:
        """The resolved configuration of the run; RunError without one."""
        path = self.path / CONFIG
        if not path.is_file():
            what = "is no file" if path.exists() else "is missing"
            raise RunError(f"{path} {what}. fix: `{run_command('resume', self.path)}`, which writes it anew.")
        return load_manifest(path)

    def sinks(self) -> list[BaseSink]:
        """The sinks of metrics.csv, evolution.jsonl, progress and messages, and of the plan in run.json."""
        return [CsvSink(self.path / METRICS), JsonlSink(self.path / LINEAGE), ProgressSink(self.path), _PlanSink(self)]

    def _write(self, content: Mapping[str, Any]) -> None:
        text = json.dumps(without_secrets(jsonable(content)), indent=2, allow_nan=False)
        write_atomic(self.path / RUN, text + "\n")


class _PlanSink(BaseSink):
    """Writes the plan (learner, backend, threads) into run.json, and drops the test of an agent that trains on."""

    def __init__(self, run: RunDirectory) -> None:
        self._run, self._has_trained = run, False

    def start(self, plan: RunPlan, founders: Sequence[Any]) -> None:
        names = ("learner", "env_backend", "threads", "device", "num_envs", "population", "max_env_steps", "notes")
        limit = {} if plan.time_limit is None else {"time_limit": plan.time_limit}
        self._run.update(**{name: vars(plan)[name] for name in names}, **limit, **plan.extra)

    def generation(self, record: GenerationRecord) -> None:
        if not self._has_trained and "test" in (self._run.facts().get("result") or {}):
            self._run.update(result={"test": None})
        self._has_trained = True


def folder_name(env_id: str) -> str:
    """The folder of an environment's runs."""
    return re.sub(r"[^\w.-]+", "-", env_id).strip(".") or "environment"


def folder_beside(path: Path, env_id: str) -> Path:
    """The `out` that puts a run of an environment next to the run at a path."""
    whole = Path(os.path.abspath(path))
    beside = whole.parents[1] if whole.parent.name == folder_name(env_id) else whole.parent
    return beside if path.is_absolute() else Path(os.path.relpath(beside))


def running(manifest: Manifest) -> dict[str, Any]:
    """Entries of run.json that follow from the manifest, for a running run."""
    names = {"algo": manifest.algorithm.name, "env_id": manifest.environment.name}
    return {"status": "running", **names, "seed": manifest.training.seed, "manifest_hash": manifest.hash()}


def now() -> str:
    """The current time, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def next_folder(parent: Path, name: str) -> Path:
    """Create the next free folder `<parent>/<name>-<nnnn>`.

    Raises:
        RunError: it cannot be created.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        number = 1 + max((_number(path.name, name) for path in parent.iterdir()), default=0)
        while True:
            path = parent / f"{name}-{number:04d}"
            try:
                path.mkdir()
                return path
            except FileExistsError:
                number += 1
    except OSError as error:
        raise RunError(f"cannot make a run directory in {parent} ({error.strerror}). fix: --out DIR.") from error


def _number(folder: str, name: str) -> int:
    match = re.fullmatch(rf"{re.escape(name)}-(\d+)", folder)
    return int(match[1]) if match else 0


def versions(env_id: str = "", backend: str = "") -> dict[str, str]:
    """Versions of Python and the packages that affect results, including multi-agent or language packages.

    backend: of the lanes; that of EnvPool affects results where it steps them.
    """
    installed = {"python": sys.version.split()[0]}
    of_kind = TEAM_PACKAGES if is_team_id(env_id) else LANGUAGE_PACKAGES if is_language_id(env_id) else ()
    of_lanes = ("envpool",) if backend == "envpool" else ()
    for name in (*PACKAGES, *of_kind, *of_lanes):
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def git_hash() -> str | None:
    """The commit of the working directory; None outside a repository or without git."""
    try:
        result = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


class RunFiles:
    """Lineage and metrics in a run directory.

    Checksums are updated incrementally: each save reads only the appended bytes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[int, Any]] = {}

    def lengths(self) -> dict[str, dict[str, Any]]:
        """Length and sha256 of each existing file, flushed to disk."""
        lengths = {}
        for name in (LINEAGE, METRICS):
            path = self.folder / name
            if not path.is_file():
                continue
            done, running = self._known.get(name, (0, hashlib.sha256()))
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                file.seek(done)
                added = file.read()
            running.update(added)
            self._known[name] = done + len(added), running
            lengths[name] = {"bytes": done + len(added), "sha256": running.hexdigest()}
        return lengths

    def begin(self) -> None:
        """Delete files of an earlier attempt: a run without checkpoints starts anew."""
        self._known.clear()
        for name in (LINEAGE, METRICS):
            (self.folder / name).unlink(missing_ok=True)

    def rewind(self, lengths: Mapping[str, Mapping[str, Any]], lineage: str) -> list[str]:
        """Restore the files of a checkpoint; a damaged lineage is rewritten.

        Returns:
            Notes on damaged files.
        """
        self._known.clear()
        for folder in (self.folder, self.folder / "best"):  # temporary files of a killed process
            for path in folder.glob(".*.tmp"):
                path.unlink(missing_ok=True)
        notes, path = [], self.folder / LINEAGE
        if LINEAGE in lengths and not (self._cut(LINEAGE, lengths[LINEAGE]) and lineage_is(path, lineage)):
            aside = f", the old one is {set_aside(path).name}" if path.exists() else ""
            write_atomic(path, lineage)
            notes.append(f"{LINEAGE} was damaged or missing; it was written anew from the checkpoint{aside}.")
        if METRICS in lengths and not self._cut(METRICS, lengths[METRICS]):
            path = self.folder / METRICS
            aside = f"; the old file is {set_aside(path).name}" if path.exists() else ""
            notes.append(f"{METRICS} was damaged or missing: its rows up to this checkpoint are lost{aside}.")
        return notes

    def _cut(self, name: str, facts: Mapping[str, Any]) -> bool:
        """Truncate the file to its length at the checkpoint; False if its content has changed."""
        path = self.folder / name
        if path.is_symlink() or not path.is_file():
            return False
        data, size = path.read_bytes(), int(facts["bytes"])
        if hashlib.sha256(data[:size]).hexdigest() != facts["sha256"]:
            return False
        if len(data) > size:
            os.truncate(path, size)
        return True


def lineage_is(path: Path, text: str) -> bool:
    """Whether the file holds exactly this text."""
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False


def changes_in(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the changes of a run.json, each with `generation` and `settings`; without damaged ones."""
    recorded = facts.get("changed")
    return [
        change for change in (recorded if isinstance(recorded, list) else ())
        if isinstance(change, dict) and isinstance(change.get("generation"), int)
        and isinstance(change.get("settings"), dict)
    ]  # fmt: skip


def pending_settings(directory: RunDirectory, generation: int) -> dict[str, Any]:
    """Return the settings of an earlier resume that was stopped before it saved a generation; none after an error."""
    with contextlib.suppress(RunError):
        facts = directory.facts()
        if facts.get("status") != "failed":
            later = [change for change in changes_in(facts) if change["generation"] >= generation]
            return {key: value for change in later for key, value in change["settings"].items()}
    return {}


def has_ended_early(directory: RunDirectory) -> bool:
    """Whether time was up in the run, whose last generation was then a shorter one."""
    with contextlib.suppress(ConfigError, RunError, OSError, ValueError):
        return directory.manifest().training.stop_after is not None
    return False


def record_changes(directory: RunDirectory, settings: Mapping[str, Any], generation: int) -> None:
    """Record the settings that change after a generation, which a replay refuses and `pending_settings` keeps."""
    earlier = changes_in(directory.facts())
    lasting = [change for change in earlier if change["generation"] < generation]
    if settings and generation:
        lasting.append({"generation": generation, "settings": dict(settings)})
    if lasting != earlier:
        directory.update(changed=lasting)
