"""Runs seeded jobs two at a time and appends one JSON line per finished job; a second start runs what is missing."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(os.environ.get("AGILERL_RESULTS", Path(__file__).parent / "results"))
PACKAGE = Path(__file__).parents[1] / "agilerl"


# What does not decide how a run trains.
SURFACE = ("cli", "views", "telemetry", "wrappers", "testing", "api.py", "errors.py")


def package_commit() -> str:
    """The last commit that changed what trains, with "+" where the working tree differs from it."""
    git, paths = ["git", "-C", str(PACKAGE)], ["--", ".", *(f":(exclude){name}" for name in SURFACE)]
    commit = subprocess.run([*git, "log", "-1", "--format=%h", *paths], capture_output=True, text=True)
    dirty = subprocess.run([*git, "status", "--porcelain", *paths], capture_output=True, text=True)
    return (commit.stdout.strip() or "unknown") + ("+" if dirty.stdout.strip() else "")


def facts() -> dict[str, Any]:
    """Versions and hardware, for every result line."""
    packages = ("torch", "numpy", "gymnasium")
    return {
        "command": " ".join(Path(part).name if Path(part).is_absolute() else part for part in sys.argv),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole result lines of a file; a line cut off by a kill is left out."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def grouped(lines: Iterable[dict[str, Any]]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """(what their keys share, lines by seed) of result lines whose keys differ in the seed alone."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault(json.dumps({k: v for k, v in line["key"].items() if k != "seed"}), []).append(line)
    return [(json.loads(group), sorted(found, key=lambda line: line["key"]["seed"])) for group, found in groups.items()]


def of_last_key(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines whose keys are those of the last one but for the seed, by seed."""
    keys = [{k: v for k, v in line["key"].items() if k != "seed"} for line in lines]
    found = [line for line, key in zip(lines, keys, strict=True) if key == keys[-1]]
    return sorted(found, key=lambda line: int(line["key"]["seed"]))


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append one JSON line and make sure that it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def run_jobs(
    script: str, path: Path, jobs: Iterable[dict[str, Any]], workers: int = 2, python: str = sys.executable
) -> None:
    """Run each job that has no line in `path` yet as `python script --job JSON`, `workers` at a time.

    A job is identified by its "key", a mapping that its result line repeats. `python`: the interpreter of an opponent.
    """
    done = {json.dumps(line["key"], sort_keys=True) for line in read_lines(path)}
    missing = [job for job in jobs if json.dumps(job["key"], sort_keys=True) not in done]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if python != sys.executable:  # an environment of its own: nothing of this one
        environment.pop("PYTHONPATH", None)
    about = facts()

    def run(job: dict[str, Any]) -> None:
        command = [python, script, "--job", json.dumps(job)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            print(f"job {job['key']} failed:\n{done.stderr}", file=sys.stderr, flush=True)
            return
        line = {**about, **json.loads(done.stdout.splitlines()[-1])}  # an opponent names its own versions
        append_line(path, line)
        print(json.dumps({k: v for k, v in line.items() if k not in ("history", "versions", "command")}), flush=True)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, missing))


def job_parser(about: str | None, seeds: str, workers: int) -> argparse.ArgumentParser:
    """The options that scripts of seeded jobs share; `--job` is how `run_jobs` calls them."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--seeds", type=seed_range, default=seed_range(seeds), help=f"{seeds} if not given")
    parser.add_argument("--workers", type=int, default=workers, help="runs at a time")
    parser.add_argument("--summary", action="store_true", help="print what is there, run nothing")
    return parser


def seed_range(text: str) -> list[int]:
    """ "0-9" or "3,5,8" as a list."""
    if "-" in text:
        first, last = text.split("-")
        return list(range(int(first), int(last) + 1))
    return [int(part) for part in text.split(",")]
