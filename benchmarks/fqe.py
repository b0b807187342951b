"""Claim: fitted Q evaluation ranks policies as their true returns do, and evolution that follows it loses little.

    python benchmarks/fqe.py [--seeds 0-2] [--workers 1]      # what is missing of every task
    python benchmarks/fqe.py --tasks rank:CartPole-v1:random
    python benchmarks/fqe.py --summary

`rank`: 36 policies (three agents of an online training, twelve checkpoints each) are judged as `collect.fitted` judges
a population: on the held-out fifth of 50,000 rows. The line says Spearman's rank correlation with their mean returns
over 20 episodes (the same for all), and what the policy of highest value returns beside the best one.
`select`: a population of four CQN learns from 50,000 rows, twice from the same seed: selected by returns in the
simulator, and by fitted Q evaluation (`training.fitness`). The line says the mean return of the run's best agent over
100 fresh episodes.

Data: "random" is uniform actions. "mixed": three of ten episodes are random, the others are played by every fourth of
the 36 checkpoints, with a random action in 10, 30 or 60 of 100 steps. One JSON line per job in results/fqe.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from runner import RESULTS, package_commit, read_lines, run_jobs, seed_range

PATH = RESULTS / "fqe.jsonl"
ROWS, AT_ONCE, EPISODES, MEMBERS, CHECKPOINTS = 50_000, 16, 20, 3, 12
TASKS = (
    "rank:CartPole-v1:random", "rank:CartPole-v1:mixed", "rank:Pendulum-v1:random", "rank:Pendulum-v1:mixed",
    "select:CartPole-v1:random", "select:CartPole-v1:mixed",
)  # fmt: skip
NET = {"encoder_config": {"hidden_size": [64]}, "head_config": {"hidden_size": [64]}, "latent_dim": 32}
# Algorithm, hyperparameters, environment steps of one member between checkpoints, before learning starts.
ONLINE: dict[str, Any] = {
    "CartPole-v1": ("DQN", {"BATCH_SIZE": 64, "LR": 5e-4, "TAU": 0.01, "DOUBLE": True, "LEARN_STEP": 2}, 400, 200),
    "Pendulum-v1": ("SAC", {"BATCH_SIZE": 128, "LR_ACTOR": 1e-3, "LR_CRITIC": 2e-3, "LR_ALPHA": 1e-3, "TAU": 0.01,
                            "LEARN_STEP": 2, "TARGET_ENTROPY": -2.0}, 480, 500),
}  # fmt: skip
SELECT = {"population": 4, "steps": 6_000, "evo_steps": 1_000, "eval_episodes": 8, "target_score": None}


def checkpoints(env_id: str, seed: int) -> list[Any]:
    """36 policies of different quality."""
    from agilerl.algorithms import find_algorithm
    from agilerl.components.replay_buffer import ReplayBuffer
    from agilerl.training.train_off_policy import train_off_policy
    from agilerl.utils.utils import create_population, make_vect_envs

    algo, hp, steps, delay = ONLINE[env_id]
    env = make_vect_envs(env_id, num_envs=8)
    spaces = env.single_observation_space, env.single_action_space
    population = create_population(algo, NET, hp, *spaces, population_size=MEMBERS, num_envs=8, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        train_off_policy(
            env, env_id, pop=population, memory=ReplayBuffer(100_000), max_steps=CHECKPOINTS * steps, evo_steps=steps,
            eval_steps=2, learning_delay=delay, eps_decay=0.98, checkpoint=steps, checkpoint_path=f"{folder}/agent",
            verbose=False, seed=seed,
        )  # fmt: skip
        return [find_algorithm(algo).load(path) for path in sorted(Path(folder).iterdir())]


def collected(env_id: str, kind: str, policies: list[Any], seed: int) -> dict[str, np.ndarray]:
    """At least `ROWS` rows of whole episodes, `AT_ONCE` of them by one policy."""
    import gymnasium as gym
    import torch

    envs = [gym.make(env_id) for _ in range(AT_ONCE)]
    space, rng, rows, number = envs[0].action_space, np.random.default_rng([seed, 1]), 0, 0
    space.seed(seed)
    episodes: list[list[tuple[Any, ...]]] = []
    while rows < ROWS:
        chosen = None if kind == "random" or rng.random() < 0.3 else policies[int(rng.integers(len(policies)))]
        share = float(rng.choice([0.1, 0.3, 0.6]))
        obs = [env.reset(seed=seed * 10**6 + number + i)[0] for i, env in enumerate(envs)]
        played: list[list[tuple[Any, ...]]] = [[] for _ in envs]
        going, number = list(range(AT_ONCE)), number + AT_ONCE
        while going:
            greedy: Any = [None] * AT_ONCE
            if chosen is not None:
                with torch.no_grad():
                    greedy = chosen.environment_action(chosen.greedy(chosen.policy_output(np.stack(obs))))
            for i in tuple(going):
                action = space.sample() if chosen is None or rng.random() < share else greedy[i]
                later, reward, terminated, truncated, _ = envs[i].step(action)
                played[i].append((obs[i], action, reward, terminated, truncated, later))
                obs[i] = later
                if terminated or truncated:
                    going.remove(i)
        episodes += played
        rows += sum(map(len, played))
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    columns = zip(*(row for episode in episodes for row in episode), strict=True)
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}


def ranks(values: Any) -> np.ndarray:
    """Ranks from 0, of equal values their mean."""
    values = np.asarray(values, np.float64)
    return np.array([((values < v).sum() + (values <= v).sum() - 1) / 2 for v in values])


def spearman(one: Any, other: Any) -> float:
    """The correlation of the ranks (Spearman 1904)."""
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def rank(key: dict[str, Any]) -> dict[str, Any]:
    """Values of 36 policies beside their returns."""
    from agilerl.collect.fitted import FittedEvaluator, hold_out
    from agilerl.collect.offline import fill
    from agilerl.components.replay_buffer import ReplayBuffer
    from agilerl.core.options import OfflineOptions
    from agilerl.data.dataset import read_dataset
    from agilerl.engine.learner import Learner
    from agilerl.utils.utils import make_vect_envs

    env_id, seed = key["env"], key["seed"]
    policies = checkpoints(env_id, seed)
    env = make_vect_envs(env_id, num_envs=EPISODES)
    returns = [agent.evaluate(EPISODES, seed=seed, env=env).mean for agent in policies]
    data = read_dataset(collected(env_id, key["data"], policies[::4], seed))
    options = OfflineOptions(fitness="fqe")
    _, held = hold_out(data, options.held_out, seed)
    rows = ReplayBuffer(len(held))
    fill(rows, held, policies[0], options)
    cpu = time.process_time()
    values = FittedEvaluator(held, rows, options, seed).population(Learner(policies), 0)
    return {
        "spearman": spearman(values, returns),
        "policies": len(policies),
        "chosen": returns[int(np.argmax(values))],
        "best": max(returns),
        "behaviour": float(data.returns().mean()),
        "held_out": {"episodes": len(held.returns()), "rows": len(held)},
        "fqe_cpu_seconds": round(time.process_time() - cpu, 1),
        "returns": [round(x, 1) for x in returns],
        "values": [round(x, 2) for x in values],
    }


def select(key: dict[str, Any]) -> dict[str, Any]:
    """The best agent of a run that follows returns, and of one that follows values."""
    import agilerl

    env_id, seed = key["env"], key["seed"]
    policies = checkpoints(env_id, seed) if key["data"] == "mixed" else []
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        np.savez(file, **collected(env_id, key["data"], policies[::4], seed))
        for way in ("returns", "fqe"):
            cpu = time.process_time()
            run = agilerl.train(
                env_id, "CQN", seed=seed, out=None, verbose=False, dataset=str(file), fitness=way, **SELECT
            )
            cpu = time.process_time() - cpu
            test = run.best.evaluate(episodes=100, seed=10_000 + seed)
            found[way] = {"score": test.mean, "ci95": test.ci95, "cpu_seconds": round(cpu, 1)}
            found[way]["history"] = [[round(f, 1) for f in generation] for generation in run.history]
    return {"loss": found["returns"]["score"] - found["fqe"]["score"], **found}


def tables() -> str:
    """The two tables of docs/offline_evaluation.md, one row a line."""
    heads = {
        "rank": ["data", "seed", "rank correlation", "chosen", "best", "behaviour"],
        "select": ["data", "seed", "by returns", "by values", "loss"],
    }
    text = []
    for kind, head in heads.items():
        lines = [line for line in read_lines(PATH) if line["key"]["kind"] == kind]
        lines.sort(key=lambda line: [line["key"][name] for name in ("env", "data", "seed")])
        text += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
        for line in lines:
            key = line["key"]
            cells = [f"{key['env']}, {key['data']}", str(key["seed"])]
            if kind == "rank":
                cells += [f"{line['spearman']:.2f}", *(f"{line[name]:.0f}" for name in ("chosen", "best", "behaviour"))]
            else:
                scores = line["returns"]["score"], line["fqe"]["score"], line["loss"]
                cells += [f"{score:.0f}" for score in scores]
            text.append(f"| {' | '.join(cells)} |")
        text.append("")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS, metavar="KIND:ENV:DATA")
    parser.add_argument("--seeds", type=seed_range, default=seed_range("0-2"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--tables", action="store_true", help="print the tables of docs/offline_evaluation.md")
    args = parser.parse_args()
    if args.job:
        key = json.loads(args.job)["key"]
        cpu = time.process_time()
        found = {"rank": rank, "select": select}[key["kind"]](key)
        print(json.dumps({"key": key, **found, "cpu_seconds": round(time.process_time() - cpu, 1)}))
        return
    if args.tables:
        print(tables())
        return
    if not args.summary:
        kinds = [dict(zip(("kind", "env", "data"), task.split(":"), strict=True)) for task in args.tasks]
        commit = package_commit()
        jobs = [{"key": {**kind, "commit": commit, "seed": seed}} for seed in args.seeds for kind in kinds]
        run_jobs(sys.argv[0], PATH, jobs, args.workers)
    for task in args.tasks:
        kind, env_id, data = task.split(":")
        lines = [x for x in read_lines(PATH) if [x["key"][k] for k in ("kind", "env", "data")] == [kind, env_id, data]]
        what = "spearman" if kind == "rank" else "loss"
        each = [round(line[what], 3) for line in lines]
        print(json.dumps({"task": task, what: each, "median": median(each) if each else None}))


if __name__ == "__main__":
    main()
