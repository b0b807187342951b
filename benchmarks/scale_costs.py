"""Measure what `scale_simulation.py` simulates with: costs of a generation by population, and of a pipe.

    python benchmarks/scale_costs.py [--populations 1 4 8] [--generations 3]

LunarLander-v3 by its presets, but with 16 evaluation episodes for all members, without a target, evolution in every
generation; CPU seconds of the loop's parts, medians over generations, and lines fitted over populations: seconds of a
population = fixed + members x slope. The pipe: CPU seconds of the sender of pickled arrays to a spawned process. JSON
lines are appended to results/scale_costs.jsonl.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import tempfile
import time
from collections import defaultdict
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from runner import RESULTS, append_line, facts, package_commit

import agilerl
from agilerl.training.loop import TrainingLoop

PARTS = {"train": "_collect", "evaluate": "_evaluate", "evolve": "_evolve", "save": "_save"}
STEPS = {"DQN": 5_000, "PPO": 5_120}  # of a member and generation


def put_clocks() -> dict[str, list[float]]:
    """Put clocks around the parts of the loop; returns their CPU seconds by generation."""
    seconds: dict[str, list[float]] = defaultdict(list)

    def around(part: str, name: str) -> None:
        method = getattr(TrainingLoop, name)

        @functools.wraps(method)
        def timed(*args: Any) -> Any:
            begun = time.process_time()
            try:
                return method(*args)
            finally:
                seconds[part].append(time.process_time() - begun)

        setattr(TrainingLoop, name, timed)

    for part, name in PARTS.items():
        around(part, name)
    return seconds


def generation(algo: str, members: int, generations: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Seconds of each part, and bytes, of one run."""
    seconds.clear()
    with tempfile.TemporaryDirectory() as out:
        run = agilerl.train(
            "LunarLander-v3",
            algo,
            population=members,
            steps=generations * STEPS[algo],
            evo_steps=STEPS[algo],
            seed=1000,
            target=None,
            confirm_episodes=0,
            eval_screen=0,
            evolve_from=0.0,
            device="cpu",
            out=out,
            verbose=False,
        )
        assert run.path is not None
        newest = max((run.path / "checkpoints").glob("gen-*"))
        state_bytes = (newest / "population.safetensors").stat().st_size / members
        rows = sum(path.stat().st_size for path in (run.path / "replay").rglob("*") if path.is_file())
    steps = run.result["env_steps_population"]
    raw = {part: [round(value, 4) for value in values] for part, values in seconds.items()}
    costs = {part: median(values) for part, values in raw.items()}
    return {**costs, "state_bytes": state_bytes, "row_bytes": rows / steps, "raw": raw}


def lines_of(algo: str, populations: list[int], generations: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """The costs by population, and the fitted lines."""
    by_population = {members: generation(algo, members, generations, seconds) for members in populations}
    fits = {}
    for part in PARTS:
        slope, fixed = np.polyfit(populations, [by_population[members][part] for members in populations], 1)
        fits[part] = {"fixed": round(float(fixed), 4), "member": round(float(slope), 4)}
    return {"claim": f"costs of a generation, LunarLander-v3 {algo}, CPU seconds", "fits": fits, "runs": by_population}


def answer(pipe: Connection) -> None:
    """Receive until None."""
    while pipe.recv() is not None:
        pipe.send(1)


def pipe_costs(repeats: int = 30) -> dict[str, Any]:
    """CPU and wall seconds of sending arrays and waiting for an answer, medians by bytes."""
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=answer, args=(far,))
    process.start()
    cpu: dict[int, float] = {}
    wall: dict[int, float] = {}
    for size in (8, 250_000, 1_000_000, 8_000_000):
        array, times = np.zeros(size, np.uint8), []
        for _ in range(repeats):
            begun = time.process_time(), time.perf_counter()
            near.send(array)
            near.recv()
            times.append((time.process_time() - begun[0], time.perf_counter() - begun[1]))
        cpu[size], wall[size] = (round(median(part), 7) for part in zip(*times, strict=True))
    near.send(None)
    process.join()
    return {
        "claim": "a message through a pipe and its answer, seconds of the sender by bytes",
        "cpu": cpu,
        "wall": wall,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--populations", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--generations", type=int, default=3)
    args = parser.parse_args()
    about, seconds, path = {"commit": package_commit(), **facts()}, put_clocks(), Path(RESULTS) / "scale_costs.jsonl"
    found = [pipe_costs()]
    append_line(path, {**found[0], **about})
    print(json.dumps(found[0]), flush=True)
    for algo in STEPS:
        line = lines_of(algo, args.populations, args.generations, seconds)
        append_line(path, {**line, **about})
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
