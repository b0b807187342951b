"""Claim: saving every generation costs at most 2 % of a generation of the LunarLander preset.

    python benchmarks/checkpoint.py                     # cost of a save, append of 10,000 rows, time to resume
    python benchmarks/checkpoint.py --soak 60           # one hour at population 8: resident memory, file descriptors

Each writes one JSON line with every raw sample. The first trains the preset (4 members) for some generations behind a
replay that holds 100,000 rows from the start, so that a save is as large as it gets.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import runner

from agilerl.api import build_manifest, run_training
from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.threads import one_thread
from agilerl.data.replay_log import ReplayLog
from agilerl.telemetry.record import BaseSink
from agilerl.training.loop import LoopSettings, TrainingLoop
from agilerl.training.manifest import build
from agilerl.training.manifest.tasks import task_of
from agilerl.training.store import RunStore

ROWS = 100_000
ENV = "LunarLander-v3"
RESULT = runner.RESULTS / "checkpoint.jsonl"


class TimedStore(RunStore):
    """Notes how long every save took, and when it began."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.saves: list[tuple[float, float, float]] = []  # begun, seconds, CPU seconds

    def save(self, loop: TrainingLoop) -> None:
        begun, cpu = time.perf_counter(), time.process_time()
        super().save(loop)
        self.saves.append((begun, time.perf_counter() - begun, time.process_time() - cpu))


def filled(rows: int, seed: int = 0) -> ReplayBuffer:
    """A buffer of LunarLander's shapes with `rows` rows of noise."""
    memory = ReplayBuffer(max_size=ROWS, seed=seed)
    add(memory, rows, np.random.default_rng(seed))
    return memory


def add(memory: ReplayBuffer, rows: int, rng: np.random.Generator) -> None:
    """`rows` rows of noise, 1000 at a time."""
    for _ in range(rows // 1000):
        obs, next_obs = rng.standard_normal((2, 1000, 8)).astype(np.float32)
        action, reward = rng.integers(0, 4, 1000), rng.standard_normal(1000)
        memory.write(obs, action, reward, next_obs, rng.random(1000) < 0.01)


@contextlib.contextmanager
def preset_loop(folder: Path, generations: int) -> Iterator[tuple[TrainingLoop, TimedStore]]:
    """The preset's loop, for so many generations."""
    manifest = build_manifest(ENV)
    per_generation = manifest.training.evo_steps
    overrides = {"training.max_steps": generations * per_generation, "training.target_score": None}
    manifest = build_manifest(ENV, overrides=overrides)
    task = task_of(manifest)
    env, eval_env = task.environments(None, "cpu")
    population = task.population(env, 0, "cpu")
    evolution = build.make_evolution(manifest, 0, "cpu")
    options = build.make_options(manifest)
    store = TimedStore(folder)
    source = OffPolicyCollector(env, filled(ROWS), options, eval_env=eval_env)
    parts: dict[str, Any] = {"evolution": evolution, "store": store}
    try:
        yield TrainingLoop(population, source, options, LoopSettings(seed=0, env_id=ENV, **parts)), store
    finally:
        store.close()
        env.close()
        eval_env.close()


def save_cost(folder: Path, generations: int) -> dict[str, Any]:
    """Seconds of every generation and of the save at its end; the first save writes all rows and is left out."""
    with preset_loop(folder, generations) as (loop, store):
        begun = time.perf_counter()
        loop.run()
    ends = [start for start, _, _ in store.saves]
    starts = [begun, *(start + seconds for start, seconds, _ in store.saves)]
    whole = [end - start for start, end in zip(starts, ends, strict=False)][1:]
    saves = [seconds for _, seconds, _ in store.saves][1:]
    size = sum(file.stat().st_size for file in sorted((folder / "checkpoints").iterdir())[-1].iterdir())
    return {
        "members": 4,
        "rows": ROWS,
        "share": statistics.median(s / g for s, g in zip(saves, whole, strict=True)),
        "save_seconds": statistics.median(saves),
        "generation_seconds": statistics.median(whole),
        "first_save_seconds": store.saves[0][1],
        "checkpoint_bytes": size,
        "raw": {"saves": saves, "save_cpu": [cpu for _, _, cpu in store.saves][1:], "generations": whole},
    }


def append_cost(folder: Path, rounds: int = 20) -> dict[str, Any]:
    """Seconds to append 10,000 rows and flush them."""
    memory, log, rng, samples = filled(ROWS), ReplayLog(folder), np.random.default_rng(1), []
    log.append(memory)
    for _ in range(rounds):
        add(memory, 10_000, rng)
        begun = time.perf_counter()
        log.append(memory)
        samples.append(time.perf_counter() - begun)
    return {"rows": 10_000, "append_seconds": statistics.median(samples), "raw": samples}


def resume_cost(folder: Path, generations: int, rounds: int = 5) -> dict[str, Any]:
    """Seconds from the open of the directory to a loop that can go on, everything verified."""
    samples = []
    for _ in range(rounds):
        begun = time.perf_counter()
        with preset_loop(folder, generations) as (loop, store), one_thread():
            prepared = time.perf_counter()
            store.restore(loop)
            samples.append((time.perf_counter() - begun, time.perf_counter() - prepared))
    return {
        "resume_seconds": statistics.median(total for total, _ in samples),
        "restore_seconds": statistics.median(restore for _, restore in samples),
        "raw": samples,
    }


class Gauge(BaseSink):
    """Resident memory [MiB] and open file descriptors, sampled once a minute; ends the run after `seconds`."""

    def __init__(self, seconds: float, every: float = 60.0) -> None:
        self.begun, self.seconds, self.every = time.monotonic(), seconds, every
        self.samples: list[tuple[float, float, int]] = []

    def progress(self, env_steps: int, seconds: float) -> None:
        now = time.monotonic() - self.begun
        if now >= len(self.samples) * self.every:
            with open("/proc/self/statm", encoding="ascii") as file:
                resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
            self.samples.append((now, resident, len(os.listdir("/proc/self/fd"))))
        if now >= self.seconds:
            raise KeyboardInterrupt


def soak(folder: Path, minutes: float) -> dict[str, Any]:
    """The preset at population 8 for `minutes`; slopes are of the second half, when the replay has filled."""
    gauge = Gauge(60 * minutes)
    overrides = {"training.max_steps": 10**9, "training.target_score": None, "training.pop_size": 8}
    run = run_training(build_manifest(ENV, overrides=overrides), out=folder, verbose=False, sinks=[gauge])
    half = np.array(gauge.samples[len(gauge.samples) // 2 :])
    hours = half[:, 0] / 3600
    slopes = [float(np.polyfit(hours, half[:, column], 1)[0]) if len(half) > 1 else 0.0 for column in (1, 2)]
    return {
        "minutes": minutes,
        "members": 8,
        "generations": run.result["generations"],
        "resident_mib_per_hour": slopes[0],
        "descriptors_per_hour": slopes[1],
        "raw": gauge.samples,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=6)
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    parser.add_argument("--folder", type=Path, help="where to write; its disk is measured. Default: a temporary one.")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        about = {"commit": runner.package_commit(), "seeds": [0], **runner.facts()}
        if asked.soak:
            line = {"claim": "an hour of training leaves memory and descriptors flat", **soak(folder, asked.soak)}
        else:
            line = {
                "claim": "a save costs at most 2 % of a generation of the LunarLander preset",
                **save_cost(folder / "run", asked.generations),
                "append": append_cost(folder / "log"),
                "resume": resume_cost(folder / "run", asked.generations),
            }
    runner.append_line(RESULT, {**line, **about})
    print(json.dumps({key: value for key, value in line.items() if key != "raw"}))


if __name__ == "__main__":
    main()
