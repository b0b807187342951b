"""Runs one job of `slow.py` with Stable-Baselines3, in an environment of its own; prints one JSON line.

    python3.11 -m venv /path/to/sb3
    /path/to/sb3/bin/pip install torch stable-baselines3 gymnasium highway-env
    /path/to/sb3/bin/python benchmarks/opponent_slow_sb3.py --job '{"key": {"env": "cartpole", ...}, ...}'

DQN for discrete actions, SAC for boxes, MlpPolicy, defaults, one environment, one thread of torch.

Target jobs: the referee of `slow_envs.py` plays the present policy every `every` steps, until it reaches the target or
`max_env_steps` have been made (then it is not reached: censored). Every policy that it meets counts, the first to reach
the target ends the run. The library makes one step after another in one process, and nothing that it chooses depends on
time. So the runs step dynamics without cost, and the wall seconds at a cost of c are derived:

    wall_seconds(c) = env_steps * c + CPU seconds of the run at cost 0, the referee's excluded.

`cost_ms` above 0 runs at that cost for real, which is how the derivation was checked. Epsilon of DQN falls over the
first tenth of `max_env_steps`, as the library has it.

Score jobs: learning for `minutes` of wall time, then 100 greedy episodes. Epsilon falls over the first tenth of that
time: the library's own rule needs the number of steps, which is not known there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable
from importlib.metadata import version
from statistics import mean
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import gymnasium
import stable_baselines3
import torch
import torch._dynamo  # optimisers load it in their first step: an import, which does not count
from slow_envs import FAMILIES, FINAL_EPISODES, referee_seeds, returns_in_turn
from stable_baselines3.common.callbacks import BaseCallback


class EachStep(BaseCallback):  # type: ignore[misc]
    """Calls a function with the number of environment steps so far; it returns whether to continue."""

    def __init__(self, goes_on: Callable[[int], bool]) -> None:
        super().__init__()
        self.goes_on = goes_on

    def _on_step(self) -> bool:
        return self.goes_on(self.num_timesteps)


class ToTarget:
    """Tests the policy at fixed intervals, and excludes the tests' time."""

    def __init__(self, model: Any, job: dict[str, Any]) -> None:
        self.model, self.job, self.family = model, job, FAMILIES[job["key"]["env"]]
        self.curve: list[list[float]] = []  # env_steps, score, CPU seconds, wall seconds
        self.reached: dict[str, float] | None = None
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def used(self, env_steps: int) -> dict[str, float]:
        return {
            "env_steps": env_steps,
            "cpu_seconds": round(time.process_time() - self.cpu, 3),
            "wall_seconds": round(time.perf_counter() - self.wall, 3),
        }

    def goes_on(self, env_steps: int) -> bool:
        if env_steps % self.job["every"]:
            return True
        used, cpu, wall = self.used(env_steps), time.process_time(), time.perf_counter()
        score = round(self.family.referee(lambda obs: self.model.predict(obs, deterministic=True)[0]), 2)
        self.curve.append([env_steps, score, used["cpu_seconds"], used["wall_seconds"]])
        if score >= self.family.target:
            self.reached = {**used, "score": score}
        self.cpu += time.process_time() - cpu
        self.wall += time.perf_counter() - wall
        return self.reached is None


def make_model(env_id: str, seed: int) -> Any:
    """DQN or SAC, by the action space, with the library's defaults."""
    env = gymnasium.make(env_id)
    kind = "DQN" if isinstance(env.action_space, gymnasium.spaces.Discrete) else "SAC"
    return getattr(stable_baselines3, kind)("MlpPolicy", env, seed=seed, device="cpu")


def run_to_target(job: dict[str, Any]) -> dict[str, Any]:
    """Environment steps, CPU and wall seconds until the target."""
    key = job["key"]
    model = make_model(FAMILIES[key["env"]].env_id(key["cost_ms"]), key["seed"])
    watch = ToTarget(model, job)
    model.learn(job["max_env_steps"], callback=EachStep(watch.goes_on))
    used = watch.reached or watch.used(model.num_timesteps)
    return {"key": key, "algo": type(model).__name__, "reached": watch.reached, **used, "curve": watch.curve}


def run_for_minutes(job: dict[str, Any]) -> dict[str, Any]:
    """The score after so many minutes of learning."""
    key = job["key"]
    for module in job["imports"]:
        importlib.import_module(module)
    model = make_model(key["env"], key["seed"])
    begun, cpu, seconds = time.perf_counter(), time.process_time(), 60 * key["minutes"]
    if isinstance(model, stable_baselines3.DQN):
        first, last = model.exploration_initial_eps, model.exploration_final_eps
        falls_over = model.exploration_fraction * seconds
        model.exploration_schedule = lambda _: (
            first + (last - first) * min(1.0, (time.perf_counter() - begun) / falls_over)
        )
    model.learn(10**12, callback=EachStep(lambda _: time.perf_counter() - begun < seconds))
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    returns = returns_in_turn(
        lambda obs: model.predict(obs, deterministic=True)[0], key["env"], referee_seeds(FINAL_EPISODES)
    )
    return {
        "key": key,
        "algo": type(model).__name__,
        "score": round(mean(returns), 3),
        "returns": [round(value, 3) for value in returns],
        "env_steps": model.num_timesteps,
        "cpu_seconds": round(cpu, 2),
        "wall_seconds": round(wall, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", required=True)
    job = json.loads(parser.parse_args().job)
    torch.set_num_threads(1)
    line = run_for_minutes(job) if "minutes" in job["key"] else run_to_target(job)
    names = ("stable-baselines3", "torch", "gymnasium", "numpy", *job.get("distributions", ()))
    print(json.dumps({**line, "versions": {name: version(name) for name in names}}))


if __name__ == "__main__":
    main()
