"""Claim: where one worker is slow, shards that do not wait train more in the same time.

    python benchmarks/stragglers.py [--rounds 3] [--workers 4] [--slower 3] [--milliseconds 2]

CartPole-v1 whose step sleeps, so that more workers than cores can be timed; in one of the processes it sleeps longer.
PPO with two shards a worker, evolution on. Modes in turn: "generations" (with copies of late pieces), "async". Counted
are generations of shards per second of wall, from the end of the first generation, when all workers have started, until
all shards have made their steps; `ideal` is the rate of all processes together without waiting.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from runner import facts, package_commit

MODES = ("generations", "async")
GENERATIONS, STEPS = 8, 400  # of each member; environment steps of one generation
SMALL = {"network.latent_dim": 8, "network.encoder_config.hidden_size": [8], "network.head_config.hidden_size": [8]}


def slow_env(mark: Path, run: int, milliseconds: float, slower: float) -> Any:
    """Make an environment that sleeps in every step, `slower` times as long in the first process besides `run`."""
    import gymnasium as gym

    if os.getpid() != run:
        with contextlib.suppress(FileExistsError), mark.open("x", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    is_slow = mark.exists() and mark.read_text(encoding="utf-8") == str(os.getpid())
    seconds = milliseconds / 1000 * (slower if is_slow else 1.0)

    class Sleeping(gym.Wrapper):  # type: ignore[type-arg]
        def step(self, action: Any) -> Any:
            time.sleep(seconds)
            return self.env.step(action)

    return Sleeping(gym.make("CartPole-v1"))


def run(mode: str, workers: int, slower: float, milliseconds: float, seed: int) -> float:
    """Generations of shards per second of one run, in this process."""
    import agilerl

    shards, looks = 2 * workers, list[tuple[float, int]]()

    def look(record: Any) -> None:
        looks.append((time.perf_counter(), record.population_env_steps))

    with tempfile.TemporaryDirectory() as folder:
        make: Callable[[], Any] = partial(slow_env, Path(folder) / "slow", os.getpid(), milliseconds, slower)
        agilerl.train(
            make, "PPO", population=shards, shards=shards, workers=workers, steps=GENERATIONS * STEPS, evo_steps=STEPS,
            num_envs=1, learn_step=100, eval_episodes=1, eval_steps=20, confirm_episodes=0, target_score=None,
            seed=seed, preset=False, out=None, verbose=False, callbacks=[look], device="cpu",
            **{"evolution.mode": mode, "evolution.scheme": "tournament"}, **SMALL,
        )  # fmt: skip
    (begun, before), (ended, after) = looks[0], looks[-1]
    return (after - before) / STEPS / (ended - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slower", type=float, default=3.0)
    parser.add_argument("--milliseconds", type=float, default=2.0)
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.mode is not None:
        print(json.dumps(run(asked.mode, asked.workers, asked.slower, asked.milliseconds, asked.seed)))
        return
    raw: dict[str, list[float]] = {mode: [] for mode in MODES}
    for seed in range(asked.rounds):
        for mode in MODES[:: -1 if seed % 2 else 1]:
            command = [sys.executable, __file__, "--mode", mode, "--seed", str(seed), "--workers", str(asked.workers)]
            command += ["--slower", str(asked.slower), "--milliseconds", str(asked.milliseconds)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            raw[mode].append(json.loads(done.stdout.splitlines()[-1]))
    alone = 1 / (STEPS * asked.milliseconds / 1000)
    print(json.dumps({
        "claim": "shards that do not wait, beside a slow worker", "workers": asked.workers, "slower": asked.slower,
        "milliseconds": asked.milliseconds, "ideal": alone * (asked.workers - 1 + 1 / asked.slower),
        "generations_of_shards_per_second": {mode: median(rates) for mode, rates in raw.items()}, "raw": raw,
        "commit": package_commit(), **facts(),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
