"""Whole runs on CUDA beside the CPU: seconds of a population without evolution. Two JSON lines per case.

    python benchmarks/device_runs.py                         # the CPU, and CUDA where there is one
    python benchmarks/device_runs.py --cases 64x4 --share 0.1 --print

A case such as 64x4 is dense layers of 64 units (two hidden, latent, head) and 4 members. Off-policy algorithms learn
from batches of 128 rows every 4 environment steps, PPO from rollouts of 512 steps, two epochs, batches of 256. Images
are 4 x 84 x 84 with random pixels, for the convolutions of Mnih et al. 2015. One evaluation episode per member;
`run_seconds` leaves out creating the agents. The CPU has one thread and its kernels in C.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np
import torch
from runner import RESULTS, append_line, facts, package_commit

import agilerl

ON_POLICY = {"learn_step": 512, "update_epochs": 2, "batch_size": 256}
OFF_POLICY = {"learn_step": 4, "learning_delay": 100, "batch_size": 128}
ENVS = {"DQN": "CartPole-v1", "PPO": "CartPole-v1", "SAC": "Pendulum-v1", "TD3": "Pendulum-v1"}
# width x members: {algorithm: environment steps of a member}
DENSE: dict[str, dict[str, int]] = {
    "64x4": {"DQN": 1600, "PPO": 4096, "SAC": 800, "TD3": 800},
    "64x16": {"DQN": 1600, "PPO": 2048},
    "128x1": {"DQN": 1600, "PPO": 2048},
    "128x4": {"DQN": 1600, "PPO": 2048, "SAC": 800},
    "192x4": {"DQN": 1600, "PPO": 2048},
    "256x1": {"DQN": 1600, "PPO": 2048},
    "256x4": {"DQN": 1600, "PPO": 2048},
    "512x4": {"DQN": 800, "PPO": 1024},
    "1024x4": {"DQN": 400, "PPO": 512},
}
IMAGES: dict[str, dict[str, Any]] = {
    "DQN": {"steps": 480, "batch_size": 32, "learn_step": 8, "learning_delay": 80, "max_size": 2000},
    "PPO": {"steps": 512, "batch_size": 128, "learn_step": 256, "update_epochs": 2},
}
CNN = {
    "encoder_config": None,
    "encoder": {"channel_size": [32, 64, 64], "kernel_size": [8, 4, 3], "stride_size": [4, 2, 1]},
    "latent_dim": 128,
    "head_config": {"hidden_size": [128]},
}


class Frames(gym.Env[np.ndarray, int]):
    """Episodes of 100 random images; the action that is right changes with time."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time, self.frames = 0, self.np_random.integers(0, 255, (32, 4, 84, 84), dtype=np.uint8)
        return self.frames[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        return self.frames[self.time % 32], float(action == self.time % 4), False, self.time >= 100, {}


def dense(width: int) -> dict[str, Any]:
    """The section `network` of a manifest."""
    layers = {"max_mlp_nodes": max(500, width)}
    return {
        "encoder_config": {"hidden_size": [width, width], **layers},
        "head_config": {"hidden_size": [width], **layers},
        "latent_dim": width,
        "max_latent_dim": max(128, width),
    }


def timed(case: str, env: str, algo: str, network: Any, device: str, steps: int, **options: Any) -> dict[str, Any]:
    """Train once; the result line."""
    begun = time.perf_counter()
    run = agilerl.train(
        env, algo, device=device, out=None, verbose=False, config={"network": network}, seed=1, steps=steps,
        evo_steps=steps, eval_episodes=1, confirm_episodes=0, num_envs=8, evolution=False, **options,
    )  # fmt: skip
    seconds = {"seconds": round(time.perf_counter() - begun, 2), "run_seconds": round(run.result["seconds"], 3)}
    return {"claim": "seconds of a run", "case": case, "algo": algo, "device": device, "env_steps": steps, **seconds}


def cases(chosen: list[str], share: float) -> list[tuple[str, str, str, Any, int, dict[str, Any]]]:
    """(case, environment, algorithm, network, environment steps, options); `share` of the steps of each."""
    found: list[tuple[str, str, str, Any, int, dict[str, Any]]] = []
    if "images" in chosen:
        for algo, given in IMAGES.items():
            options = {name: value for name, value in given.items() if name != "steps"} | {"population": 4}
            found.append(("images", "Frames-v0", algo, CNN, int(given["steps"] * share), options))
    for case in (case for case in chosen if case != "images"):
        width, members = map(int, case.split("x"))
        for algo, steps in DENSE[case].items():
            options = {**(ON_POLICY if algo == "PPO" else OFF_POLICY), "population": members}
            found.append((case, ENVS[algo], algo, dense(width), int(steps * share), options))
    return found


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--cases", nargs="+", default=["images", *DENSE], choices=["images", *DENSE], metavar="CASE")
    made.add_argument("--share", type=float, default=1.0, help="share of each case's environment steps")
    made.add_argument("--print", action="store_true", help="print the lines and store none")
    return made


def main() -> None:
    args = parser().parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    gym.register("Frames-v0", Frames)
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices[1:]:  # a first run loads its kernels
        timed("first", "CartPole-v1", "DQN", dense(64), device, 300, **OFF_POLICY, population=4)
    for case, env, algo, network, steps, options in cases(args.cases, args.share):
        for device in devices:
            line = {**timed(case, env, algo, network, device, steps, **options), "commit": package_commit(), **facts()}
            print(json.dumps(line), flush=True)
            if not args.print:
                append_line(RESULTS / "device_runs.jsonl", line)


if __name__ == "__main__":
    main()
