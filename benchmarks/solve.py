"""Claim: the shipped presets solve their environments. One JSON line per seed in results/<env>-<algo>.jsonl.

    python benchmarks/solve.py                                  # what is missing of seeds 0-9, all quick presets
    python benchmarks/solve.py --tasks CartPole-v1:DQN --no-evolution
    python benchmarks/solve.py --tasks BipedalWalker-v3:TD3     # slow ones are run when they are named
    python benchmarks/solve.py --summary

A seed counts as solved if the returned best agent's mean over 100 fresh greedy episodes, which neither chose the agent
nor stopped the run, reaches the threshold. Steps, CPU seconds and wall seconds are those of the whole population,
evaluation and confirmations included, the final test excluded.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median
from typing import Any

from runner import RESULTS, grouped, job_parser, package_commit, read_lines, run_jobs

# "environment:algorithm" -> (score that counts as solved, seeds that must reach it, number of seeds)
TASKS = {
    "CartPole-v1:DQN": (475.0, 10, 10),
    "Acrobot-v1:DQN": (-100.0, 10, 10),
    "LunarLander-v3:DQN": (200.0, 9, 10),
    "MountainCar-v0:DQN": (-120.0, 8, 10),
    "Pendulum-v1:SAC": (-170.0, 10, 10),
    "Pendulum-v1:TD3": (-170.0, 10, 10),
    "LunarLanderContinuous-v3:TD3": (200.0, 9, 10),
    "MountainCarContinuous-v0:TD3": (90.0, 9, 10),
    "LunarLander-v3:RainbowDQN": (200.0, 4, 5),
    "CartPole-v1:PPO": (475.0, 10, 10),
    "LunarLander-v3:PPO": (200.0, 9, 10),
    "Acrobot-v1:PPO": (-100.0, 10, 10),
    "MaskedCartPole-v1:PPO": (450.0, 9, 10),
    # teams: 80 % of the way from random play to a player that is told everything (yardsticks_mpe2.py)
    "mpe2.simple_speaker_listener_v4:MADDPG": (-28.45, 9, 10),
    "mpe2.simple_speaker_listener_v4:MATD3": (-28.45, 9, 10),
    "mpe2.simple_speaker_listener_v4:IPPO": (-28.45, 9, 10),
    "mpe2.simple_speaker_listener_v4:MAPPO": (-28.45, 9, 10),
    "mpe2.simple_spread_v3:MATD3": (-37.16, 9, 10),
    "mpe2.simple_spread_v3:MAPPO": (-37.16, 9, 10),
    "mpe2.simple_speaker_listener_v4:MATD3:continuous": (-26.84, 9, 10),
}
SLOW = {
    "BipedalWalker-v3:TD3": (250.0, 1, 1),
    "Pendulum-v1:PPO": (-170.0, 9, 10),
    "LunarLanderContinuous-v3:PPO": (200.0, 9, 10),
    "MaskedPendulum-v1:PPO": (-200.0, 9, 10),
    "BipedalWalker-v3:PPO": (250.0, 1, 1),
}
# The same presets, changed on purpose: what a policy without memory reaches, say. Lines of their own.
VARIANTS = {
    "MaskedCartPole-v1:PPO:feed-forward": ("algorithm.recurrent=false", "network.encoder=null"),
    "mpe2.simple_speaker_listener_v4:MATD3:continuous": ("environment.kwargs={continuous_actions: true}",),
}
ALL = {**TASKS, **SLOW, "MaskedCartPole-v1:PPO:feed-forward": (450.0, 0, 10)}


def path_of(task: str) -> Any:
    env_id, algo, *variant = task.split(":")
    return RESULTS / ("-".join([env_id.replace("/", "__"), algo.lower(), *variant]) + ".jsonl")


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    """Train one seed from its preset and test the best agent."""
    import agilerl

    key = job["key"]
    wall, cpu = time.perf_counter(), time.process_time()
    run = agilerl.train(
        key["env"], seed=key["seed"], out=None, verbose=False, evolution=key["evolution"], config=job["config"]
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    test = run.best.evaluate(episodes=100, seed=key["seed"])
    return {
        "key": key,
        "score": test.mean,
        "ci95": test.ci95,
        "solved": test.mean >= ALL[":".join((key["env"], key["algo"], *key.get("variant", ())))][0],
        "stopped": run.result["stopped"],
        "confirmed": run.result["confirmed"],
        "population_env_steps": run.result["env_steps_population"],
        "member_env_steps": run.result["env_steps_member"],
        "evaluation_env_steps": run.result["evaluation_env_steps"],
        "births": len(run.lineage),
        "cpu_seconds": round(cpu, 2),
        "wall_seconds": round(wall, 2),
        "history": [[round(f, 1) for f in generation] for generation in run.history],
    }


def jobs_for(task: str, seeds: list[int], evolution: bool, sets: list[str]) -> list[dict[str, Any]]:
    from agilerl.config import apply_sets, preset_for

    env_id, algo, *variant = task.split(":")
    manifest = apply_sets(preset_for(env_id, algo), [*VARIANTS.get(task, ()), *sets])
    base = {"env": env_id, "algo": algo, "preset": manifest.hash(), "commit": package_commit(), "evolution": evolution}
    base |= {"variant": variant} if variant else {}
    count = ALL[task][2]
    return [{"key": {**base, "seed": seed}, "config": manifest.as_dict()} for seed in seeds if sets or seed < count]


def summary(task: str) -> None:
    """One line per (preset, commit, evolution) of a task."""
    for group, lines in grouped(read_lines(path_of(task))):
        print(
            json.dumps(
                {
                    **group,
                    "seeds": [line["key"]["seed"] for line in lines],
                    "solved": f"{sum(line['solved'] for line in lines)}/{len(lines)}",
                    "scores": [round(line["score"], 1) for line in lines],
                    "median_population_env_steps": median(line["population_env_steps"] for line in lines),
                    "median_cpu_seconds": median(line["cpu_seconds"] for line in lines),
                    "median_wall_seconds": median(line["wall_seconds"] for line in lines),
                    "max_wall_seconds": max(line["wall_seconds"] for line in lines),
                }
            )
        )


def main() -> None:
    parser = job_parser(__doc__, seeds="0-9", workers=2)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(ALL), metavar="ENV:ALGO")
    parser.add_argument("--no-evolution", action="store_true")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="change the preset: a.b=v (tuning)")
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_one(json.loads(args.job))))
        return
    for task in args.tasks:
        if not args.summary:
            jobs = jobs_for(task, args.seeds, not args.no_evolution, args.sets)
            run_jobs(sys.argv[0], path_of(task), jobs, args.workers)
        summary(task)


if __name__ == "__main__":
    main()
