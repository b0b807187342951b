"""Claim: a slow lane does not hold up the others with `environment.asynchronous`, and costs a run less time.

    python benchmarks/uneven_lanes.py            # about two minutes

CartPole-v1 whose step sleeps for 2 ms, and one step in ten for 50 ms, as a simulator does that sometimes loads or
replans. Two members with four lanes each, one worker process per lane, 1,000 steps per member. Printed: seconds of
collecting and learning, with lanes that wait for each other and with lanes that do not, seed by seed. Sleeping lanes
need no cores: a simulator that computes gains at most as much as the cores allow.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

SEEDS = (1, 2, 3)
ALGORITHMS: dict[str, dict[str, Any]] = {"DQN": {"learning_delay": 100}, "PPO": {"learn_step": 128, "batch_size": 32}}


class Uneven(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 with steps of 2 ms, one in ten of 50 ms."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.rng = np.random.default_rng()

    def step(self, action: Any) -> Any:
        time.sleep(0.05 if self.rng.random() < 0.1 else 0.002)
        return super().step(action)


def seconds(algo: str, seed: int, asynchronous: bool) -> float:
    """Train, and return the seconds of collecting and learning."""
    import agilerl

    options = {"environment.healing": True, "environment.num_workers": 8, "environment.asynchronous": asynchronous}
    run = agilerl.train(
        Uneven, algo, population=2, num_envs=4, steps=1_000, evo_steps=1_000, eval_episodes=1, eval_steps=1,
        confirm_episodes=0, seed=seed, preset=False, verbose=False, out=None, **options, **ALGORITHMS[algo],
    )  # fmt: skip
    assert run.time is not None
    return run.time.collecting + run.time.learning


def main() -> None:
    for algo in ALGORITHMS:
        for seed in SEEDS:
            waiting, ready = (seconds(algo, seed, asynchronous) for asynchronous in (False, True))
            print(f"{algo}, seed {seed}: {waiting:.1f} s and {ready:.1f} s, {waiting / ready:.1f} times", flush=True)


if __name__ == "__main__":
    main()
