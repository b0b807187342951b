"""Claim: what evolution adds. One JSON line per run in results/evolution-<pair>.jsonl; no environment's preset is read.

    python benchmarks/evolution.py --pairs LunarLander-v3:PPO --starts good lr_low --arms fixed ours --seeds 1000-1002
    python benchmarks/evolution.py --pairs LunarLander-v3:PPO --arms sb3 --python /path/to/other/python
    python benchmarks/evolution.py --summary --against fixed

A *pair* is an environment and an algorithm, with the general preset of that algorithm as its good start. A *start* is
what is wrong with it. An *arm* is a way to train: a configuration of `agilerl.train`, or an opponent in a Python
environment of its own (`opponent_peers.py`, `opponent_original_evolution.py`).

A run ends when it has used its budget of CPU seconds and its budget of environment steps (training and evaluation, all
members together); at each `--checkpoints`-th part of either one, what the arm would return plays 100 fresh greedy
episodes, which count for neither; nor do imports, as of the opponents. It ends before that where such a test reaches
the target and a second, independent one does too: "reached". Scores are reported as shares of the way from random play
to the target, 1 at most.
Seeds from 1000 up are for development; claims are made on seeds 0 to 9.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import pkgutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evolution_tables import compare, summarise
from peers_clock import FINAL, SECOND, CheckpointClock, test_seeds
from runner import RESULTS, job_parser, package_commit, read_lines, run_jobs

if TYPE_CHECKING:
    from agilerl.config import Manifest

CHECKPOINTS = 12
TEST_EPISODES = 100


@dataclass(frozen=True)
class Pair:
    """An environment and an algorithm.

    Attributes:
        random: mean return of random play. target: what counts as solved.
        env_steps: budget of all members together, evaluation included. cpu_seconds: the other budget.
        sets: KEY=VALUE over the general preset, for all arms.
    """

    env: str
    algo: str
    random: float
    target: float
    env_steps: int
    cpu_seconds: float
    sets: tuple[str, ...] = ()


WIDE = {
    "DQN": {"lr": (1e-4, 1e-2), "gamma": (0.9, 0.999)},
    "PPO": {"lr": (1e-4, 1e-2), "gamma": (0.9, 0.999)},
    "SAC": {"lr_actor": (1e-4, 1e-2), "lr_critic": (1e-4, 1e-2), "gamma": (0.9, 0.999)},
    "TD3": {"lr_actor": (1e-4, 1e-2), "lr_critic": (1e-4, 1e-2), "gamma": (0.9, 0.999)},
}
PAIRS = {
    f"{pair.env}:{pair.algo}": pair
    for pair in (
        Pair("CartPole-v1", "DQN", 22.0, 475.0, 1_000_000, 60.0),
        Pair("CartPole-v1", "PPO", 22.0, 475.0, 1_000_000, 60.0),
        Pair("Acrobot-v1", "DQN", -499.0, -100.0, 1_000_000, 90.0),
        Pair("Acrobot-v1", "PPO", -499.0, -100.0, 1_000_000, 90.0),
        Pair("MountainCar-v0", "DQN", -200.0, -120.0, 2_000_000, 120.0),
        Pair("MountainCar-v0", "PPO", -200.0, -120.0, 2_000_000, 120.0),
        Pair("LunarLander-v3", "DQN", -180.0, 200.0, 2_000_000, 200.0),
        Pair("LunarLander-v3", "PPO", -180.0, 200.0, 3_000_000, 150.0),
        Pair("Pendulum-v1", "PPO", -1230.0, -170.0, 3_000_000, 150.0),
        Pair("Pendulum-v1", "SAC", -1230.0, -170.0, 150_000, 150.0),
        Pair("Pendulum-v1", "TD3", -1230.0, -170.0, 150_000, 150.0),
        Pair("LunarLanderContinuous-v3", "PPO", -190.0, 200.0, 3_000_000, 150.0),
        Pair("LunarLanderContinuous-v3", "SAC", -190.0, 200.0, 1_500_000, 400.0),
    )
}


@dataclass(frozen=True)
class Start:
    """What is changed of the good start."""

    lr_factor: float = 1.0
    gamma: float | None = None
    width: int | None = None
    batch_size: int | None = None
    off_centre: bool = False  # the range of the learning rate ends a tenth of a decade above the good value


STARTS = {
    "good": Start(),
    "lr_low": Start(lr_factor=0.1),
    "lr_high": Start(lr_factor=10.0),
    "gamma_low": Start(gamma=0.9),
    "narrow": Start(width=8),
    "batch_16": Start(batch_size=16),
    "off_centre": Start(lr_factor=0.1, off_centre=True),
}


@dataclass(frozen=True)
class Arm:
    """A way to train: settings over the plain start, and whether evolution is on; `opponent` names a script instead."""

    sets: dict[str, Any] = field(default_factory=dict)
    evolution: bool = True
    ranges: bool = False  # founders and mutations use the wide ranges, not those of the general preset
    rate: bool = False  # the algorithm's own rule for its learning rate, if it has one
    own: bool = False  # the ranges and the PLAIN keys of the general preset
    widths: bool = False  # founders have layers within those of the general preset, if it has some
    opponent: str | None = None


def probabilities(kinds: dict[str, float]) -> dict[str, float]:
    return {f"mutation.probabilities.{kind}": value for kind, value in kinds.items()}


# What general presets do beside their values: taken away from every arm, and given back to "ours".
PLAIN = {
    "evolution.founders": "equal",
    "evolution.scheme": "tournament",
    "evolution.widths": None,
    "training.eval_members": None,
    "training.eval_screen": 0,
    "training.patience": None,
    "training.elite_rescore_episodes": 0,
}
SPREAD = {"evolution.founders": "spread"}
EIGHT = {"training.pop_size": 8}
HALVING = {**SPREAD, **EIGHT, "evolution.scheme": "halving", "evolution.until": 0.25}
RACE = {**SPREAD, "evolution.scheme": "race", "training.eval_members": 1}
RATE = {"PPO": {"algorithm.lr_schedule": "adaptive"}}  # rules of members of their own, by algorithm
ALL_KINDS = {"no_mut": 0.4, "arch_mut": 0.2, "new_layer": 0.2, "params_mut": 0.2, "act_mut": 0.0, "rl_hp_mut": 0.2}
ARMS = {
    # One configuration for all members.
    "fixed": Arm(evolution=False),
    "single": Arm({"training.pop_size": 1}, evolution=False),
    # The published operators: equal founders, tournaments, steps of 0.8 and 1.2, all kinds of mutation.
    "published": Arm(
        {"evolution.scheme": "tournament", "training.evolve_from": 0.0, **probabilities(ALL_KINDS)},
        ranges=True,
    ),
    # The same draws, with more and more selection.
    "random": Arm(SPREAD, evolution=False, ranges=True, widths=True),
    "tournament-spread": Arm(SPREAD, ranges=True),
    "halving": Arm(HALVING, ranges=True),
    "halving-training": Arm({**HALVING, "evolution.judge": "training"}, ranges=True),
    "race": Arm(RACE, ranges=True),
    "race-8": Arm({**RACE, **EIGHT}, ranges=True),
    # Schemes of others: a bandit's proposals, and parts of the population at two paces.
    "pb2": Arm({**SPREAD, "evolution.scheme": "pb2"}, ranges=True),
    "mf_pbt": Arm({**SPREAD, **EIGHT, "evolution.scheme": "mf_pbt", "evolution.frequencies": [1, 4]}, ranges=True),
    # Rates that follow the divergence, alone and with the race.
    "adaptive": Arm(rate=True, evolution=False),
    "adaptive-random": Arm(SPREAD, rate=True, evolution=False, ranges=True),
    "adaptive-race": Arm(RACE, rate=True, ranges=True),
    # What the general presets do, and the same where nobody's training ends.
    "ours": Arm(rate=True, own=True),
    "unselected": Arm(evolution=False, rate=True, own=True),
    "sb3": Arm(opponent="opponent_peers.py"),
    "optuna": Arm(opponent="opponent_peers.py"),
    "ray": Arm(opponent="opponent_peers.py"),
    "agilerl-2.58.0": Arm(opponent="opponent_original_evolution.py"),
}


def path_of(pair: str) -> Path:
    return RESULTS / f"evolution-{pair.replace(':', '-').lower()}.jsonl"


# -- our own arms -----------------------------------------------------------------------------------------------------


def settings(pair: Pair, start: Start, arm: Arm) -> Manifest:
    """The manifest of an arm from a start."""
    from agilerl.config import apply_overrides, apply_sets, preset_for

    general_preset = preset_for(pair.env, pair.algo, general=True)
    manifest = apply_sets(general_preset, pair.sets)
    own_rule = RATE.get(pair.algo, {})
    manifest = apply_overrides(manifest, {**PLAIN, **dict.fromkeys(own_rule, "constant")}, "plain")
    values = manifest.algorithm.hyperparameters
    rates = [name for name in values if name in ("lr", "lr_actor", "lr_critic", "lr_alpha")]
    changes: dict[str, Any] = {f"algorithm.{name}": values[name] * start.lr_factor for name in rates}
    if start.gamma is not None:
        changes["algorithm.gamma"] = start.gamma
    if start.batch_size is not None:
        changes["algorithm.batch_size"] = start.batch_size
    if start.width is not None:
        changes |= {
            f"network.{part}.{key}": value
            for part in ("encoder_config", "head_config")
            for key, value in (("hidden_size", [start.width]), ("min_mlp_nodes", start.width))
        }
        changes["network.latent_dim"] = start.width
    if arm.ranges or arm.own:
        general = {name: (span.min, span.max) for name, span in manifest.mutation.rl_hp_selection.items()}
        ranges = WIDE[pair.algo] if arm.ranges else general
        changes["mutation.rl_hp_selection"] = {
            name: dict(zip(("min", "max"), range_of(start, name, values, usual), strict=True))
            for name, usual in ranges.items()
        }
    if arm.own:
        changes |= {key: reduce(getattr, key.split("."), general_preset) for key in PLAIN if key != "training.patience"}
    changes["training.target_score"] = None
    manifest = apply_overrides(manifest, changes, "start")
    widths = {"evolution.widths": general_preset.evolution.widths} if arm.widths else {}
    manifest = apply_overrides(manifest, {**arm.sets, **widths, **(own_rule if arm.rate else {})}, "arm")
    members = manifest.training.pop_size
    return apply_overrides(manifest, {"training.max_steps": 2 * pair.env_steps // members}, "budget")


def range_of(start: Start, name: str, values: dict[str, Any], usual: tuple[float, float]) -> tuple[float, float]:
    if start.off_centre and name.startswith("lr"):
        return 0.001 * values[name], 10**0.1 * values[name]
    return usual


class Measurer:
    """Hears of a run's generations, and tests its best agent where a checkpoint is due."""

    def __init__(self, job: dict[str, Any], clock: CheckpointClock) -> None:
        self.job, self.clock, self.best, self.tested = job, clock, None, None
        self.curve: list[dict[str, Any]] = []
        self.reached: dict[str, Any] | None = None
        self.not_counted = 0.0
        self.begun = time.process_time()

    @property
    def cpu_seconds(self) -> float:
        return time.process_time() - self.begun - self.not_counted

    def on_best(self, agent: Any) -> None:
        self.best = agent

    def on_generation(self, record: Any) -> bool | None:
        training, evaluation = record.population_env_steps, record.evaluation_env_steps
        used = {"cpu_seconds": round(self.cpu_seconds, 2), "env_steps": training + evaluation}
        used |= {"training_env_steps": training, "evaluation_env_steps": evaluation}
        for by in self.clock.due(used["cpu_seconds"], used["env_steps"]):
            self.curve.append({**used, "score": self.test(len(self.curve)), "by": by, "members": members_of(record)})
            score, target = self.curve[-1]["score"], self.job["target"]
            if score >= target and (second := self.play(SECOND + len(self.curve))) >= target:
                self.reached = {**used, "score": score, "second_score": second}
                return False
        return False if self.clock.is_over(used["cpu_seconds"], used["env_steps"]) else None

    def test(self, number: int) -> float:
        """Of an agent that has been tested, what it got then."""
        if self.tested is None or self.tested[0] is not self.best:
            self.tested = (self.best, self.play(number))
        return float(self.tested[1])

    def play(self, number: int) -> float:
        begun = time.process_time()
        seed = test_seeds(self.job["key"]["seed"], number, TEST_EPISODES)[0]
        score = float(self.best.evaluate(episodes=TEST_EPISODES, seed=seed).mean)
        self.not_counted += time.process_time() - begun
        return round(score, 2)


def members_of(record: Any) -> list[dict[str, Any]]:
    shown = ("lr", "lr_actor", "gamma", "batch_size")
    return [
        {"id": m.id, "fitness": round(m.fitness, 1), "score": None if m.score is None else round(m.score, 1),
         **{k: float(f"{v:.3g}") for k, v in m.hyperparameters.items() if k in shown}}
        for m in record.members
    ]  # fmt: skip


def load_everything(package: Any) -> None:
    """The clocks of opponents begin after their imports too."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of extras that are not installed
                importlib.import_module(module.name)


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    """Train one seed of one of our arms."""
    import agilerl

    load_everything(agilerl)
    clock = CheckpointClock(job["cpu_budget"], job["step_budget"], job["checkpoints"])
    measurer = Measurer(job, clock)
    run = agilerl.train(
        job["env"], config=job["config"], seed=job["key"]["seed"], evolution=job["evolution"], out=None, verbose=False,
        callbacks=[measurer],
    )  # fmt: skip
    final = {"cpu_seconds": round(measurer.cpu_seconds, 2),
             "env_steps": run.result["env_steps_population"] + run.result["evaluation_env_steps"]}  # fmt: skip
    measurer.best = run.best
    score = measurer.reached["second_score"] if measurer.reached else measurer.play(FINAL)
    return {
        "key": job["key"],
        "curve": measurer.curve,
        "final": {"score": score, **final},
        "reached": measurer.reached,
        **final,
        "evaluation_env_steps": run.result["evaluation_env_steps"],
        "updates": run.result["updates"],
        "settings": {k: v for k, v in run.best.hyperparameters().items() if isinstance(v, int | float)},
        "births": len(run.lineage),
    }


# -- jobs -------------------------------------------------------------------------------------------------------------


def job_of(pair: str, start: str, arm: str, seed: int, checkpoints: int = CHECKPOINTS) -> dict[str, Any]:
    about, begin, way = PAIRS[pair], STARTS[start], ARMS[arm]
    key: dict[str, Any] = {"pair": pair, "start": start, "arm": arm, "seed": seed}
    key |= {"cpu_budget": about.cpu_seconds, "step_budget": about.env_steps}
    key |= {} if checkpoints == CHECKPOINTS else {"checkpoints": checkpoints}
    job: dict[str, Any] = {
        "env": about.env, "algo": about.algo, "seed": seed, "arm": arm, "target": about.target,
        "cpu_budget": about.cpu_seconds, "step_budget": about.env_steps, "checkpoints": checkpoints,
        "test_episodes": TEST_EPISODES,
    }  # fmt: skip
    if (
        way.opponent is not None
    ):  # by CPU seconds alone: a search whose trials are sized by steps would end in its first
        key["step_budget"] = job["step_budget"] = None
        job |= {"trial_steps": about.env_steps // 20, "perturbation_interval": about.env_steps // 80}
        low, high = range_of(begin, "lr", {"lr": 1e-3}, (1e-4, 1e-2))
        job["start"] = {**asdict(begin), "lr_range": [low, high], "gamma_range": [0.9, 0.999]}
        return {**job, "key": key}
    manifest = settings(about, begin, way)
    key |= {"commit": package_commit(), "settings": manifest.hash()}
    return {**job, "key": key, "config": manifest.as_dict(), "evolution": way.evolution}


def main() -> None:
    parser = job_parser(__doc__, seeds="0-9", workers=1)
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), choices=list(PAIRS), metavar="ENV:ALGO")
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=list(STARTS))
    parser.add_argument("--arms", nargs="+", default=["fixed", "random", "published"], choices=list(ARMS))
    parser.add_argument("--checkpoints", type=int, default=CHECKPOINTS, help=f"parts of a budget; {CHECKPOINTS}")
    parser.add_argument("--python", help="interpreter of the opponent's environment")
    parser.add_argument("--against", choices=list(ARMS), metavar="ARM", help="compare the other arms with this one")
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_one(json.loads(args.job))))
        return
    for pair in args.pairs:
        for arm in args.arms if not args.summary else ():
            jobs = [job_of(pair, start, arm, seed, args.checkpoints) for start in args.starts for seed in args.seeds]
            run_arm(ARMS[arm], path_of(pair), jobs, args)
        summarise(pair, PAIRS[pair].random, PAIRS[pair].target, read_lines(path_of(pair)))
    if args.against:
        lines = {pair: read_lines(path_of(pair)) for pair in args.pairs}
        ends = {pair: (PAIRS[pair].random, PAIRS[pair].target) for pair in args.pairs}
        compare(lines, ends, args.against)


def run_arm(arm: Arm, path: Path, jobs: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """In this interpreter, or in that of the opponent."""
    run: Callable[..., None] = run_jobs
    if arm.opponent is None:
        run(sys.argv[0], path, jobs, args.workers)
        return
    if args.python is None:
        raise SystemExit(f"{arm.opponent} runs in an environment of its own: --python /path/to/its/python")
    run(str(Path(__file__).parent / arm.opponent), path, jobs, args.workers, args.python)


if __name__ == "__main__":
    main()
