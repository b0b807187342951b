"""d3rlpy with its defaults on one of our data sets, for `offline_beside.py`.

    /path/to/other/python benchmarks/opponent_d3rlpy.py --job JSON

Runs in an environment of its own (pip install d3rlpy h5py "gymnasium[mujoco]") and imports nothing of ours. The policy
is evaluated over `eval_episodes` after every `every` updates; the one that was best then, and the last one, each play
`test_episodes` fresh greedy episodes. Hyperparameters are its defaults; what a default cannot know, the bounds of the
actions, it is told. One JSON line.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
from importlib.metadata import version
from typing import Any

import numpy as np

CONFIGS = {"CQL": "CQLConfig", "IQL": "IQLConfig", "TD3BC": "TD3PlusBCConfig", "BC": "BCConfig"}


def read(path: str) -> Any:
    """The data set as d3rlpy takes it; time limits are its time-outs."""
    import h5py
    from d3rlpy.dataset import MDPDataset

    with h5py.File(path, "r") as file:
        names = ("observations", "actions", "rewards", "terminals")
        observations, actions, rewards, terminals = (np.asarray(file[name]) for name in names)
        cut = next((name for name in ("timeouts", "truncations") if name in file), None)
        timeouts = np.zeros(len(terminals)) if cut is None else np.asarray(file[cut]).astype(np.float32)
    timeouts = np.where(terminals.astype(bool), 0.0, timeouts)
    if not (terminals[-1] or timeouts[-1]):
        timeouts[-1] = 1.0  # the file ends within an episode
    return MDPDataset(
        observations.astype(np.float32), actions.astype(np.float32), rewards.astype(np.float32).reshape(-1, 1),
        terminals.astype(np.float32), timeouts,
    )  # fmt: skip


def scaled_actions(env_id: str) -> Any:
    """Actions by the bounds of the environment: the policies end in tanh, and without it reach half of Pendulum's."""
    import gymnasium
    from d3rlpy.preprocessing import MinMaxActionScaler

    space = gymnasium.make(env_id).action_space
    return MinMaxActionScaler(minimum=space.low, maximum=space.high)


def play(policy: Any, env_id: str, episodes: int, seed: int, lanes: int = 20) -> float:
    """Mean return of greedy episodes, `lanes` at a time; episode k begins with the seed `seed + k`."""
    import gymnasium

    total = 0.0
    for first in range(0, episodes, lanes):
        envs = [gymnasium.make(env_id) for _ in range(min(lanes, episodes - first))]
        seen = {k: env.reset(seed=seed + first + k)[0] for k, env in enumerate(envs)}
        while seen:
            actions = policy.predict(np.stack(list(seen.values())).astype(np.float32))
            for k, action in zip(list(seen), actions, strict=True):
                seen[k], reward, terminated, truncated, _ = envs[k].step(action)
                total += float(reward)
                if terminated or truncated:
                    del seen[k]
        for env in envs:
            env.close()
    return total / episodes


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", required=True)
    job = json.loads(parser.parse_args().job)
    import d3rlpy
    import torch

    torch.set_num_threads(1)
    d3rlpy.seed(job["seed"])
    data = read(job["file"])
    config = getattr(d3rlpy.algos, CONFIGS[job["algo"]])(action_scaler=scaled_actions(job["env"]))
    algo = config.create(device="cpu:0")
    begun, evaluating, best = cpu_seconds(), 0.0, (-np.inf, None)
    algo.build_with_dataset(data)
    curve = []
    epochs = algo.fitter(
        data, n_steps=job["updates"], n_steps_per_epoch=job["every"], show_progress=False, save_interval=10**9,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )  # fmt: skip
    for epoch, _ in epochs:
        now = cpu_seconds()
        score = play(algo, job["env"], job["eval_episodes"], 1_000_000 * (job["seed"] + 1) + 1000 * epoch)
        curve.append(round(score, 1))
        if score > best[0]:
            best = (score, copy.deepcopy(algo.impl.policy.state_dict()))
        evaluating += cpu_seconds() - now
    cpu = cpu_seconds() - begun
    last = play(algo, job["env"], job["test_episodes"], job["seed"])
    algo.impl.policy.load_state_dict(best[1])
    score = play(algo, job["env"], job["test_episodes"], job["seed"])
    print(
        json.dumps(
            {
                "key": job["key"],
                "score": score,
                "last": last,
                "curve": curve,
                "cpu_seconds": round(cpu, 2),
                "cpu_seconds_evaluating": round(evaluating, 2),
                "versions_of_theirs": {
                    name: version(name) for name in ("d3rlpy", "torch", "gymnasium", "numpy", "mujoco")
                },
            }
        )
    )


if __name__ == "__main__":
    main()
