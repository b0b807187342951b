"""Stable-Baselines3's SAC with its defaults, for a learning curve at equal environment steps.

    /path/to/other/python benchmarks/opponent_sb3.py --env HalfCheetah-v5 --steps 300000 --seed 0 --folder /some/folder

Runs in an environment of its own (pip install torch stable-baselines3 "gymnasium[mujoco]"). A second start goes on from
the last evaluation that was saved in the folder. Prints one JSON line at the end and after every evaluation.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any


def evaluate(model: Any, env_id: str, episodes: int, seed: int) -> float:
    """Mean return of greedy episodes in an environment of their own."""
    import gymnasium

    env, total = gymnasium.make(env_id), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        done = False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(model.predict(obs, deterministic=True)[0])
            total, done = total + float(reward), terminated or truncated
    env.close()
    return total / episodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--every", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()
    import gymnasium
    import torch
    from stable_baselines3 import SAC

    torch.set_num_threads(1)
    args.folder.mkdir(parents=True, exist_ok=True)
    curve_file, model_file, replay_file = (args.folder / name for name in ("curve.json", "model.zip", "replay.pkl"))
    facts: dict[str, Any] = {"curve": [], "cpu_seconds": 0.0}
    if curve_file.is_file():
        facts = json.loads(curve_file.read_text(encoding="utf-8"))
        model = SAC.load(model_file, env=gymnasium.make(args.env), device="cpu")
        model.load_replay_buffer(replay_file)
    else:
        model = SAC("MlpPolicy", args.env, seed=args.seed, device="cpu")
    while model.num_timesteps < args.steps:
        begun = time.process_time()
        model.learn(min(args.every, args.steps - model.num_timesteps), reset_num_timesteps=False)
        facts["cpu_seconds"] = round(facts["cpu_seconds"] + time.process_time() - begun, 1)
        facts["curve"].append([model.num_timesteps, round(evaluate(model, args.env, 8, 10_000), 1)])
        model.save(model_file)
        model.save_replay_buffer(replay_file)
        partial = curve_file.with_suffix(".tmp")
        partial.write_text(json.dumps(facts), encoding="utf-8")
        os.replace(partial, curve_file)
        print(json.dumps(facts["curve"][-1]), flush=True)
    versions = {name: version(name) for name in ("stable-baselines3", "torch", "gymnasium")}
    print(json.dumps({"env": args.env, "algo": "SAC", "seed": args.seed, **facts, "versions": versions}))


if __name__ == "__main__":
    main()
