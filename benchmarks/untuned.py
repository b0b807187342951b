"""Claim: `agilerl train ENV` solves environments that nobody has tuned. A line per seed in results/untuned-<env>.jsonl.

    python benchmarks/untuned.py                                # what is missing of seeds 0-9
    python benchmarks/untuned.py --tasks CartPole-v1 --seeds 1000-1002
    python benchmarks/untuned.py --tasks Hopper-v5 --minutes 2
    python benchmarks/untuned.py --others --seeds 0-2           # environments that nothing here was developed on
    python benchmarks/untuned.py --sb3 --python /path/to/other/python   # Stable-Baselines3's PPO beside it
    python benchmarks/untuned.py --summary

No preset of an environment is read (`preset=False`), no algorithm is named. A run ends as the command ends it: at the
target that the environment's registration names, on a plateau, or with its budget, which is of ten minutes at measured
speed; and after 600 CPU seconds. (Lines whose keys name no minutes had 500,000 steps of each member.) A seed counts as
solved if the best agent's mean over 100 fresh greedy episodes, which chose nothing, reaches the threshold here. CPU
seconds are those of the whole run, evaluations and confirmations included, that test excluded.

Stable-Baselines3 gets its defaults (PPO, MlpPolicy) and as many CPU seconds as our run of the same seed has used.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from runner import RESULTS, grouped, job_parser, package_commit, read_lines, run_jobs

CPU_SECONDS = 600.0
MINUTES = 10.0  # what the command takes where nobody has tuned a budget
# Score that counts as solved, and where it comes from.
TASKS = {
    "CartPole-v1": 475.0,  # its registration
    "Acrobot-v1": -100.0,  # its registration
    "MountainCar-v0": -120.0,  # as in solve.py; its registration says -110, which the run waits for
    "LunarLander-v3": 200.0,  # its registration
    "Pendulum-v1": -170.0,  # as in solve.py; its registration names none
    "LunarLanderContinuous-v3": 200.0,  # its registration
    "Hopper-v5": 2000.0,  # standing is worth 1,000; its registration says 3,800, which the run waits for
    "FrozenLake-v1": 0.7,  # its registration
    "MiniGrid-DoorKey-5x5-v0": 0.9,  # of 1; walking straight to the goal gives 0.96
    "MinAtar/Breakout-v1": 8.0,  # random play: 0.5; DQN of Young and Tian 2019 (arXiv:1903.03176): about 8 in 5M frames
}
# Environments that were not looked at while the general presets were made, but for those that the page names.
OTHERS = {
    "MountainCarContinuous-v0": 90.0,  # its registration; restarts have been developed on it since its first row
    "InvertedPendulum-v5": 950.0,  # its registration
    "InvertedDoublePendulum-v5": 9100.0,  # its registration
    "Reacher-v5": -5.0,  # standing still: -12; its registration says -3.75, which the run waits for
    "HalfCheetah-v5": 3000.0,  # random play: -280; its registration says 4,800, which the run waits for
    "Walker2d-v5": 2000.0,  # standing: 1,000; its registration names none
    "Swimmer-v5": 360.0,  # its registration
    "BipedalWalker-v3": 300.0,  # its registration
    "CliffWalking-v1": -17.0,  # the safest way; the shortest is worth -13
    "Taxi-v4": 7.0,  # the shortest ways: 7.9; its registration says 8, which the run waits for
    "FrozenLake8x8-v1": 0.8,  # its registration says 0.85, which the run waits for
    "MiniGrid-Empty-8x8-v0": 0.9,  # of 1
    "MinAtar/SpaceInvaders-v1": 25.0,  # random play: 4
}
ALL = {**TASKS, **OTHERS}


def path_of(env_id: str, opponent: str = "") -> Path:
    name = env_id.replace("/", "__").lower()
    return RESULTS / f"untuned-{name}{opponent}.jsonl"


class Limit:
    """Ends a run whose next generation would end after its CPU seconds, if it takes as long as the longest one yet."""

    def __init__(self) -> None:
        self.begun = self.last = time.process_time()
        self.longest = 0.0

    def on_generation(self, record: Any) -> bool | None:
        now = time.process_time()
        self.last, self.longest = now, max(self.longest, now - self.last)
        return False if now - self.begun + self.longest > CPU_SECONDS else None


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    """One seed of the bare command, and the test of its best agent."""
    import agilerl

    key = job["key"]
    cpu = time.process_time()
    run = agilerl.train(
        key["env"], preset=False, seed=key["seed"], minutes=key["minutes"], out=None, verbose=False, callbacks=[Limit()]
    )
    cpu = time.process_time() - cpu
    test = run.best.evaluate(episodes=100, seed=key["seed"])
    return {
        "key": key,
        "score": test.mean,
        "ci95": test.ci95,
        "solved": test.mean >= ALL[key["env"]],
        "stopped": run.result["stopped"],
        "confirmed": run.result["confirmed"],
        "population_env_steps": run.result["env_steps_population"],
        "evaluation_env_steps": run.result["evaluation_env_steps"],
        "cpu_seconds": round(cpu, 2),
        "hyperparameters": {name: float(f"{v:.4g}") for name, v in run.best.hyperparameters().items()},
        "history": [[round(f, 1) for f in generation] for generation in run.history],
    }


def jobs_for(env_id: str, seeds: list[int], minutes: float = MINUTES) -> list[dict[str, Any]]:
    from agilerl.api import build_manifest

    manifest = build_manifest(env_id, preset=False)
    base = {"env": env_id, "algo": manifest.algorithm.name, "minutes": minutes}
    base |= {"settings": manifest.hash(), "commit": package_commit()}
    return [{"key": {**base, "seed": seed}} for seed in seeds]


def opponent_jobs(env_id: str, seeds: list[int]) -> list[dict[str, Any]]:
    """Stable-Baselines3 with the CPU seconds of our newest line of each seed."""
    used = {line["key"]["seed"]: line["cpu_seconds"] for line in read_lines(path_of(env_id))}
    return [
        {
            "key": {"env": env_id, "arm": "sb3", "seed": seed, "cpu_budget": used[seed]},
            "arm": "sb3", "env": env_id, "algo": "PPO", "seed": seed, "cpu_budget": used[seed], "step_budget": None,
            "start": {"lr_factor": 1.0, "gamma": None, "width": None, "batch_size": None, "lr_range": [1e-4, 1e-2],
                      "gamma_range": [0.9, 0.999]},
            "checkpoints": 1, "target": ALL[env_id], "test_episodes": 100,
        }
        for seed in seeds if seed in used
    ]  # fmt: skip


def opponent_lines(env_id: str) -> list[dict[str, Any]]:
    """The opponent's newest line of each seed, by seed: an older one had the CPU seconds of an older run of ours."""
    newest = {line["key"]["seed"]: line for line in read_lines(path_of(env_id, "-sb3"))}
    return [newest[seed] for seed in sorted(newest)]


def summary(env_id: str) -> None:
    """One line per (settings, commit) of an environment, and one of the opponent."""
    for group, lines in grouped(read_lines(path_of(env_id))):
        print(
            json.dumps(
                {
                    **group,
                    "seeds": [line["key"]["seed"] for line in lines],
                    "solved": f"{sum(line['solved'] for line in lines)}/{len(lines)}",
                    "scores": [round(line["score"], 2) for line in lines],
                    "stopped": [line["stopped"] for line in lines],
                    "cpu_seconds": [round(line["cpu_seconds"]) for line in lines],
                    "median_cpu_seconds": round(median(line["cpu_seconds"] for line in lines), 1),
                }
            )
        )
    theirs = opponent_lines(env_id)
    if theirs:
        scores = [round(line["final"]["score"], 2) for line in theirs]
        solved = sum(score >= ALL[env_id] for score in scores)
        print(json.dumps({"env": env_id, "arm": "sb3", "solved": f"{solved}/{len(scores)}", "scores": scores}))


def main() -> None:
    parser = job_parser(__doc__, seeds="0-9", workers=1)
    parser.add_argument("--tasks", nargs="+", choices=list(ALL), metavar="ENV")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"of a run; {MINUTES:g} if not given")
    parser.add_argument("--others", action="store_true", help="those that nothing here was developed on")
    parser.add_argument("--sb3", action="store_true", help="the opponent, for seeds that have a line of ours")
    parser.add_argument("--python", help="interpreter of the opponent's environment")
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_one(json.loads(args.job))))
        return
    if args.sb3 and args.python is None:
        raise SystemExit("Stable-Baselines3 runs in an environment of its own: --python /path/to/its/python")
    for env_id in args.tasks or (OTHERS if args.others else TASKS):
        if args.sb3:
            script = str(Path(__file__).parent / "opponent_peers.py")
            run_jobs(script, path_of(env_id, "-sb3"), opponent_jobs(env_id, args.seeds), args.workers, args.python)
        elif not args.summary:
            run_jobs(sys.argv[0], path_of(env_id), jobs_for(env_id, args.seeds, args.minutes), args.workers)
        summary(env_id)


if __name__ == "__main__":
    main()
