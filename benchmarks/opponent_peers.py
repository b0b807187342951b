"""Runs one job of `evolution.py` with other libraries, in an environment of its own; prints one JSON line.

    python3.11 -m venv /path/to/peers
    /path/to/peers/bin/pip install torch stable-baselines3 optuna "ray[tune]" psutil "gymnasium[box2d,mujoco]" \
        minigrid minatar
    /path/to/peers/bin/python benchmarks/opponent_peers.py --job '{"arm": "sb3", "env": "CartPole-v1", ...}'

Arms, all with Stable-Baselines3's algorithms on one environment per learner, as its defaults have it:

* sb3: its defaults, changed only by what the start says (`peers_sb3.py`);
* optuna: Optuna's TPE with its median pruner over trials one after another (`peers_optuna.py`);
* ray: Ray Tune's PopulationBasedTraining, population 4 (`peers_ray.py`).

The job: {"key": anything, "arm", "env", "algo": "DQN" | "PPO" | "SAC" | "TD3", "start": {"lr_factor": 1.0, "gamma":
null, "width": null, "batch_size": null, "lr_range": [low, high], "gamma_range": [low, high]}, "seed", "cpu_budget",
"step_budget", "checkpoints", "target", "test_episodes"}. A null keeps the library's default, or is no limit. Optional:
"trial_steps" (of an Optuna trial; a tenth of step_budget, or 20,000 without one) and "perturbation_interval" (steps of
a member of Ray's population; an eightieth of step_budget, or a fifth of trial_steps without one).

A run trains until both budgets are used up. At each of `checkpoints` equal parts of either one, what it would return
plays fresh greedy episodes, which are not counted; two such tests in a row at the target end the run. The policy of
Optuna is that of the best evaluation so far, of Ray that of the member with the best last report. CPU seconds are those
of the process and all its children (of Ray from `ray.init` on), imports excluded, of Ray's workers too; environment
steps are training and the arm's own evaluations. Torch has one thread everywhere. Epsilon-greedy exploration of DQN
falls over its fraction of the budget that is used up first, of an Optuna trial over its fraction of the trial.

MiniGrid's observations are the image alone as a flat row of floats (no direction, no mission text), MinAtar's boolean
planes a flat row of floats: both go to an MlpPolicy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from importlib.metadata import version
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
LIBRARIES = {"sb3": (), "optuna": ("optuna",), "ray": ("ray",)}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """The result line of a job."""
    import torch
    import torch._dynamo  # optimisers load it in their first step: an import, which does not count

    torch.set_num_threads(1)
    if job["arm"] == "sb3":
        from peers_sb3 import run_arm
    elif job["arm"] == "optuna":
        from peers_optuna import run_arm
    elif job["arm"] == "ray":
        from peers_ray import run_arm
    else:
        raise SystemExit(f"unknown arm {job['arm']!r}; fix: one of {', '.join(LIBRARIES)}")
    with contextlib.redirect_stdout(sys.stderr):
        line = run_arm(job)
    names = ("stable-baselines3", *LIBRARIES[job["arm"]], "torch", "gymnasium", "numpy")
    return {**line, "versions": {name: version(name) for name in names}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", required=True)
    print(json.dumps(run(json.loads(parser.parse_args().job))))


if __name__ == "__main__":
    main()
