"""Claim: neural bandits learn rewards that a linear one cannot. One JSON line per run in results/bandits.jsonl.

    python benchmarks/bandits.py                      # what is missing of three data sets, five seeds
    python benchmarks/bandits.py --sets wine --seeds 0-2
    python benchmarks/bandits.py --summary

A run is one agent without evolution: 5,000 rounds of `BanditEnv`, whose contexts have the same order for every
algorithm of a seed. Regret counts the rounds whose arm was not the class of the context. LinUCB is the disjoint
one of Li et al. 2010 (arXiv:1003.0146, algorithm 1), with the best of three settings of its only parameter on each data
set; the neural ones have one setting for all. `wine` and `digits` are scikit-learn's; `squares` is made here: the
class is the k with the largest (x . a_k)^2, which no linear function of x tells.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import mean, stdev
from typing import Any

import numpy as np
from runner import RESULTS, grouped, job_parser, package_commit, read_lines, run_jobs

PATH = RESULTS / "bandits.jsonl"
ROUNDS, EVERY = 5_000, 500
SETS = ("wine", "digits", "squares")
ALPHAS = (0.1, 0.3, 1.0)  # of LinUCB
NEURAL = {"gamma": 0.1, "lamb": 1.0, "reg": 6.25e-4, "lr": 1e-3, "batch_size": 64, "learn_step": 1}
T975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}  # Student's t


class LinUCB:
    """One ridge regression and its confidence ellipsoid for each arm (arXiv:1003.0146, algorithm 1), λ = 1.

    alpha: width of the confidence bound.
    """

    def __init__(self, arms: int, size: int, alpha: float) -> None:
        self.alpha = alpha
        self.inverse = np.stack([np.eye(size)] * arms)  # A_k^-1
        self.sums = np.zeros((arms, size))  # b_k

    def choose(self, x: np.ndarray) -> int:
        """Return the arm with the highest bound for features [d]."""
        along = self.inverse @ x
        bounds = (along * self.sums).sum(1) + self.alpha * np.sqrt((along * x).sum(1))
        return int(bounds.argmax())

    def learn(self, arm: int, x: np.ndarray, reward: float) -> None:
        """Update the regression of the chosen arm."""
        along = self.inverse[arm] @ x
        self.inverse[arm] -= np.outer(along, along) / (1 + along @ x)
        self.sums[arm] += reward * x


def squares(seed: int = 0, rows: int = 4_000, size: int = 8, arms: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Return (features [rows, size] standard normal, classes [rows]): argmax_k (x . a_k)^2 for unit vectors a_k."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.standard_normal((size, size)))[0][:arms]
    x = rng.standard_normal((rows, size)).astype(np.float32)
    return x, ((x @ directions.T) ** 2).argmax(1)


def data_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    from agilerl.envs.bandit import labelled

    return squares() if name == "squares" else labelled(name)


def played(choose: Any, env: Any) -> tuple[list[int], float]:
    """Play all rounds; return (regret after every `EVERY` rounds, CPU seconds). choose: (contexts) -> (arm, learn)."""
    begun, regret, curve = time.process_time(), 0, []
    contexts = env.reset()
    for number in range(1, ROUNDS + 1):
        arm, learn = choose(contexts)
        later, reward = env.step(arm)
        learn(contexts, arm, reward)
        contexts, regret = later, regret + int(reward == 0)
        if number % EVERY == 0:
            curve.append(regret)
    return curve, time.process_time() - begun


def linear(env: Any, alpha: float) -> Any:
    size = env.context_dim[0] // env.arms
    bandit = LinUCB(env.arms, size + 1, alpha)

    def features(contexts: np.ndarray) -> np.ndarray:
        return np.append(contexts[0, :size], 1.0)  # a constant, as networks have biases

    def learn(contexts: np.ndarray, arm: int, reward: float) -> None:
        bandit.learn(arm, features(contexts), reward)

    return lambda contexts: (bandit.choose(features(contexts)), learn)


def neural(env: Any, algo: str, seed: int, settings: dict[str, Any]) -> Any:
    from agilerl.algorithms import find_algorithm
    from agilerl.components import ReplayBuffer

    net = {"latent_dim": 64, "encoder_config": {"hidden_size": [64]}, "head_config": {"hidden_size": [64]}}
    agent = find_algorithm(algo)(env.observation_space, env.action_space, net_config=net, seed=seed, **settings)
    memory = ReplayBuffer(max_size=ROUNDS, seed=seed)

    def learn(contexts: np.ndarray, arm: int, reward: float) -> None:
        memory.add({"obs": contexts[arm][None], "reward": np.array([reward], np.float32)})
        if len(memory) >= agent.batch_size and len(memory) % agent.learn_step == 0:
            agent.learn(memory.sample(agent.batch_size))

    return lambda contexts: (agent.get_action(contexts), learn)


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    from agilerl.envs.bandit import BanditEnv

    key = job["key"]
    env = BanditEnv(*data_of(key["set"]), seed=key["seed"])
    if key["algo"] == "LinUCB":
        choose = linear(env, key["settings"]["alpha"])
    else:
        choose = neural(env, key["algo"], key["seed"], key["settings"])
    curve, seconds = played(choose, env)
    return {"key": key, "regret": curve[-1], "curve": curve, "every": EVERY, "cpu_seconds": round(seconds, 2)}


def jobs(sets: list[str], seeds: list[int]) -> list[dict[str, Any]]:
    commit, found = package_commit(), []
    for name in sets:
        for seed in seeds:
            base = {"set": name, "rounds": ROUNDS, "seed": seed}
            found += [{"key": {**base, "algo": "LinUCB", "settings": {"alpha": alpha}}} for alpha in ALPHAS]
            found += [
                {"key": {**base, "algo": algo, "settings": NEURAL, "commit": commit}}
                for algo in ("NeuralUCB", "NeuralTS")
            ]
    return found


def interval(values: list[float]) -> tuple[float, float]:
    """Return (mean, half width of its 95 % interval by Student's t)."""
    if len(values) < 2:
        return mean(values), float("nan")
    return mean(values), T975[len(values) - 1] * stdev(values) / len(values) ** 0.5


def summary(sets: list[str]) -> None:
    """Print one line per data set and algorithm."""
    for group, lines in grouped(read_lines(PATH)):
        if group["set"] in sets:
            centre, half = interval([line["regret"] for line in lines])
            late = mean(line["curve"][-1] - line["curve"][-3] for line in lines)
            row = {"set": group["set"], "algo": group["algo"], "settings": group["settings"], "seeds": len(lines)}
            row |= {"regret": round(centre), "half_width": round(half), "last_1000": round(late)}
            print(json.dumps(row | {"cpu_seconds": round(mean(line["cpu_seconds"] for line in lines), 1)}))


def main() -> None:
    parser = job_parser(__doc__, seeds="0-4", workers=1)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_one(json.loads(args.job))))
        return
    if not args.summary:
        run_jobs(sys.argv[0], PATH, jobs(args.sets, args.seeds), args.workers)
    summary(args.sets)


if __name__ == "__main__":
    main()
