"""Claim: what each part of evolution adds where training is a hundred intervals long. Lines in results/long-*.jsonl.

    python benchmarks/long.py --tasks Walker2d-v5:PPO BipedalWalker-v3:PPO --seeds 1000-1003  # a first look, all arms
    python benchmarks/long.py --tasks Hopper-v5:PPO --arms random pbt-10 --seeds 0-7
    python benchmarks/long.py --summary

Every arm has the same CPU seconds. But for `single`, `default` and `command` with their kind, arms have the same
population and founders drawn from one wide space of seven dimensions (the first one too); the width of all is drawn by
the seed. Generations are equally long, so that about a hundred fit for a population that does not shrink; evaluation
lengthens them where it would take more than an eighth of training. Rates that follow the divergence and running scales
are off, but for arms named `rule` and `command`. Members are ranked by their training returns; the best by them plays
four evaluation episodes. At each tenth of the budget what the arm would return plays `CHECKPOINT_EPISODES` fresh
greedy episodes, at the end the better of it and the last leader in `CONFIRM_EPISODES` plays `FINAL_EPISODES`; none of
these count for the budget.

Seeds from 1000 up are for development; claims are made on seeds 0 to 7.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from evolution import Measurer, load_everything, test_seeds
from evolution_tables import compared, interquartile_mean, interval, profile, rounded, share
from peers_clock import CheckpointClock
from runner import RESULTS, job_parser, package_commit, read_lines, run_jobs

INTERVALS = 100
LONGEST = 20 * INTERVALS  # generations that a run may have, if few members are left
CHECKPOINTS = 10
CHECKPOINT_EPISODES, CONFIRM_EPISODES, FINAL_EPISODES = 20, 32, 100
RECENT = 32  # training episodes of a member
MEMBERS = 16
NO_TARGET = 1e9
PROFILE = (0.25, 0.5, 0.75)  # shares that runs are above


@dataclass(frozen=True)
class Task:
    """An environment and an algorithm.

    Attributes:
        random: score of random play. good: what counts as 1 of a share. Scores are mean returns of test episodes.
        cpu_seconds: budget. evo_steps: environment steps of a member in a generation. num_envs: its environments, few
            enough for whole episodes, which begin anew with each generation.
        player: of self-play, whom tests are played against; their score is then the share of games won.
    """

    env: str
    algo: str
    random: float
    good: float
    cpu_seconds: float
    evo_steps: int
    num_envs: int = 8
    sets: dict[str, Any] = field(default_factory=dict)
    player: str | None = None


TASKS = {
    f"{task.env}:{task.algo}": task
    for task in (
        Task("Walker2d-v5", "PPO", 2.0, 4500.0, 400.0, 2048, 2),
        Task("Hopper-v5", "PPO", 13.0, 3600.0, 400.0, 2048, 2),
        Task("BipedalWalker-v3", "PPO", -100.0, 300.0, 400.0, 4096, 2, {"environment.backend": "envpool"}),
        Task("BipedalWalker-v3", "SAC", -100.0, 300.0, 400.0, 2048, 2, {"environment.backend": "envpool"}),
        Task("MinAtar/Breakout-v1", "PPO", 0.5, 30.0, 400.0, 4096),
        Task("MinAtar/Breakout-v1", "DQN", 0.5, 30.0, 400.0, 2048, 4),
        Task("MiniGrid-DoorKey-8x8-v0", "PPO", 0.0, 0.96, 400.0, 2048, 2),
        Task(
            "pettingzoo.classic.connect_four_v3",
            "IPPO",
            0.2,
            0.9,
            800.0,
            8192,
            64,
            {"training.opponents": "self"},
            player="lookahead",
        ),
    )
}
# Wide around the usual values. Widths, batches and passes end where a member would cost many times the usual one.
SPACES: dict[str, dict[str, tuple[float, float]]] = {
    "PPO": {
        "lr": (1e-5, 1e-2), "gamma": (0.9, 0.9995), "gae_lambda": (0.8, 0.99), "ent_coef": (1e-5, 1e-1),
        "clip_coef": (0.05, 0.5), "batch_size": (64, 1024), "update_epochs": (1, 10),
    },
    "DQN": {
        "lr": (1e-5, 1e-2), "gamma": (0.9, 0.9995), "batch_size": (16, 256), "learn_step": (1, 16),
        "tau": (1e-3, 1e-1),
    },
    "SAC": {
        "lr_actor": (1e-5, 1e-2), "lr_critic": (1e-5, 1e-2), "lr_alpha": (1e-5, 1e-2), "gamma": (0.9, 0.9995),
        "batch_size": (32, 256), "learn_step": (1, 16), "tau": (1e-3, 1e-1),
    },
}  # fmt: skip
SPACES["IPPO"] = {name: ends for name, ends in SPACES["PPO"].items() if name != "clip_coef"}
WIDTHS = (32, 128)

# Of every arm: no rule, no race, no restarts, cheap evaluation.
PLAIN: dict[str, Any] = {
    "training.target_score": None, "training.patience": None, "training.evo_first": None, "training.evolve_from": 0.0,
    "training.eval_members": 1, "training.eval_episodes": 4, "training.eval_screen": 0, "training.eval_share": 0.125,
    "training.confirm_episodes": 0,
    "training.confirm_most": 0, "training.elite_rescore_episodes": 0, "evolution.restarts": False,
    "evolution.restart_ranges": {}, "evolution.scheme": "tournament", "evolution.founders": "spread",
    "evolution.widths": list(WIDTHS),
}  # fmt: skip
# Rates that follow the divergence, and running scales; only PPO has them (`named_for`).
RULES: dict[str, dict[str, Any]] = {
    "PPO": {
        "algorithm.lr_schedule": "adaptive", "algorithm.target_kl": 0.015, "algorithm.normalize_observations": True,
        "training.normalize_rewards": True,
    },
}  # fmt: skip
WITHOUT_RULES: dict[str, dict[str, Any]] = {
    "PPO": {
        "algorithm.lr_schedule": "constant", "algorithm.target_kl": None, "algorithm.action_ent_steps": None,
        "algorithm.normalize_observations": False, "training.normalize_rewards": False,
    },
    "IPPO": {"algorithm.lr_schedule": "constant", "algorithm.target_kl": None},
}  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """A way to train: settings over `PLAIN`; whether evolution is on, and whether the rules of `RULES` are."""

    sets: dict[str, Any] = field(default_factory=dict)
    evolution: bool = True
    rules: bool = False
    drawn: bool = True  # founders from the space, not the general preset's values
    plain: bool = True  # False: the preset as it is, with its own founders
    only: str | None = None  # the algorithm that it is for
    independent: bool = False  # members share no replay: each is a shard


def tournament(**kinds: float) -> dict[str, Any]:
    every = {"no_mut": 0.0, "arch_mut": 0.0, "params_mut": 0.0, "act_mut": 0.0, "rl_hp_mut": 0.0, **kinds}
    return {f"mutation.probabilities.{kind}": value for kind, value in every.items()}


def pbt(interval: int) -> dict[str, Any]:
    return {"evolution.scheme": "pbt", "evolution.interval": interval}


ALONE = {"training.pop_size": 1, "evolution.founders": "equal", "evolution.widths": None}
STEPS = tournament(no_mut=0.5, rl_hp_mut=0.5)
ARMS = {
    "single": Arm({"training.pop_size": 1}, evolution=False),  # what one member costs
    "seeds": Arm({"evolution.founders": "equal", "evolution.widths": None}, evolution=False, drawn=False),
    "default": Arm(ALONE, evolution=False, drawn=False),  # one agent with the general preset's values
    "random": Arm(evolution=False, independent=True),
    "race": Arm({"evolution.scheme": "race"}),
    "race-4": Arm({"evolution.scheme": "race", "evolution.survivors": 4}),
    "tournament": Arm(STEPS),
    "tournament-architecture": Arm(tournament(no_mut=0.5, rl_hp_mut=0.25, arch_mut=0.25)),
    "tournament-frozen": Arm(tournament(no_mut=1.0)),
    "tournament-unselected": Arm(
        {**STEPS, "tournament_selection.tournament_size": 1, "tournament_selection.elitism": False}
    ),
    "pbt-1": Arm(pbt(1)),
    "pbt-3": Arm(pbt(3)),
    "pbt-10": Arm(pbt(10)),
    "pbt-33": Arm(pbt(33)),
    "mf_pbt": Arm({"evolution.scheme": "mf_pbt", "evolution.frequencies": [1, 10]}),
    "pb2": Arm({"evolution.scheme": "pb2"}),
    "rule-default": Arm(ALONE, evolution=False, rules=True, drawn=False),
    "rule": Arm(evolution=False, rules=True),
    "rule-race": Arm({"evolution.scheme": "race"}, rules=True),  # the command without a preset
    "rule-pbt-10": Arm(pbt(10), rules=True),
    "command": Arm({"training.pop_size": 4}, rules=True, drawn=False, plain=False),  # without a preset, as it is
    "command-fixed": Arm({"training.pop_size": 4}, evolution=False, rules=True, drawn=False, plain=False),
    "command-one": Arm(  # a single agent with the command's mechanisms
        {"training.pop_size": 1, "evolution.founders": "equal"}, evolution=False, rules=True, drawn=False, plain=False
    ),
    "command-share": Arm({"training.pop_size": 4, "training.eval_share": 0.25}, rules=True, drawn=False, plain=False),
}


def named_for(arm: str, task: str) -> str:
    """The arm itself, or the same without the rules where the algorithm of a task has none: `random` for `rule`."""
    if TASKS[task].algo in RULES or not (ARMS[arm].rules and ARMS[arm].plain):
        return arm
    return "random" if arm == "rule" else arm.removeprefix("rule-")


def members_of(arm: str, members: int) -> int:
    """The members of an arm: its own number, or `members`."""
    return int(ARMS[arm].sets.get("training.pop_size", members)) if arm in ARMS else members


def settings(task: Task, arm: Arm, seed: int, members: int = MEMBERS) -> Any:
    """The manifest of an arm; the first founder is a draw from the space too, by the seed."""
    from agilerl.config import apply_overrides, preset_for
    from agilerl.core.env_ids import reward_threshold
    from agilerl.hpo.founders import spread
    from agilerl.hpo.operators import RLParameter

    space = SPACES[task.algo]
    integers = ("batch_size", "update_epochs", "learn_step")
    parameters = {name: RLParameter(*ends, dtype=int if name in integers else float) for name, ends in space.items()}
    is_game = task.player is not None  # whose network fits the board: widths are left as they are
    manifest = preset_for(task.env, task.algo, general=not is_game)
    ranges = {name: {"min": low, "max": high} for name, (low, high) in space.items()}
    if not arm.plain:
        threshold = reward_threshold(task.env)
        ends = {"training.target_score": threshold}  # for restarts; without one a plateau would end the run
        ends |= {"training.patience": None} if threshold is None else {}
        manifest = apply_overrides(manifest, {**ends, **task.sets, **arm.sets}, "arm")
        return apply_overrides(manifest, {"training.max_steps": LONGEST * task.evo_steps}, "budget")
    rules = RULES[task.algo] if arm.rules else {}
    changes: dict[str, Any] = {**PLAIN, **WITHOUT_RULES.get(task.algo, {}), **rules}
    changes |= {"training.pop_size": members, "training.evo_steps": task.evo_steps, "mutation.rl_hp_selection": ranges}
    changes["environment.num_envs"] = task.num_envs
    if is_game:
        changes |= {"evolution.widths": None}
    if arm.drawn:
        (first,) = spread(parameters, 1, seed + 77_000)
        (width,) = spread({"width": RLParameter(*WIDTHS, dtype=int)}, 1, seed + 78_000)
        changes |= {f"algorithm.{name}": value for name, value in first.items()}
    if arm.drawn and not is_game:
        changes |= {f"network.{part}.hidden_size": [width["width"]] for part in ("encoder_config", "head_config")}
        changes |= {"network.latent_dim": width["width"]}
    manifest = apply_overrides(manifest, {**changes, **task.sets, **arm.sets}, "arm")
    if arm.independent and manifest.has_replay:
        manifest = apply_overrides(manifest, {"training.shards": members, "training.share": "shard"}, "independent")
    # CPU seconds end a run; a shrinking population makes many more steps of a member.
    return apply_overrides(manifest, {"training.max_steps": LONGEST * task.evo_steps}, "budget")


class LongMeasurer(Measurer):
    """Remembers the environment steps of a member after each generation."""

    def __init__(self, job: dict[str, Any], clock: CheckpointClock | None) -> None:
        super().__init__(job, clock)
        self.steps: list[int] = []

    def on_generation(self, record: Any) -> bool | None:
        self.steps.append(int(record.env_steps))
        return super().on_generation(record)


class MatchMeasurer(LongMeasurer):
    """Tests by games against a player that training never meets; the score is the share of games won."""

    def play(self, number: int) -> float:
        from agilerl.rollouts.matches import outcomes

        begun, games = time.process_time(), self.job["test_episodes"]
        seed = test_seeds(self.job["key"]["seed"], number, games)[0]
        results = outcomes(self.best, self.job["env"], self.job["player"], games, seed)
        self.not_counted += time.process_time() - begun
        return round(float((results > 0).mean()), 3)


def job_of(task: str, arm: str, seed: int, members: int, cpu_seconds: float | None = None) -> dict[str, Any]:
    about, way = TASKS[task], ARMS[arm]
    manifest, budget = settings(about, way, seed, members), cpu_seconds or about.cpu_seconds
    key = {"task": task, "arm": arm, "members": members, "cpu_budget": budget, "seed": seed,
           "commit": package_commit()}  # fmt: skip
    return {"key": key, "env": about.env, "config": manifest.as_dict(), "evolution": way.evolution,
            "target": NO_TARGET, "cpu_budget": budget, "test_episodes": CHECKPOINT_EPISODES,
            "player": about.player}  # fmt: skip


def handed_over(run: Any, measurer: Measurer) -> Any:
    """The better in `CONFIRM_EPISODES` of the best agent so far and the last leader by training returns.

    A run that knows its end confirms its last leaders so; a run that is stopped by CPU seconds does not. In a game
    training returns are relative, and the best agent is the last leader.
    """
    if measurer.job["player"] is not None:
        return run.best
    born = {birth.id for birth in run.lineage if birth.generation >= len(run.history)}  # by the last selection
    trained = [agent for agent in run.population if agent.index not in born]
    leader = max(trained, key=lambda agent: sum(agent.scores[-RECENT:]) / max(1, len(agent.scores[-RECENT:])))
    scores, measurer.job = [], {**measurer.job, "test_episodes": CONFIRM_EPISODES}
    for number, measurer.best in enumerate((run.best, leader)):
        scores.append(measurer.play(2 * CHECKPOINTS + number))
    return leader if scores[1] > scores[0] else run.best


def winners_line(births: Sequence[Any], winner: Any, steps: Sequence[int]) -> dict[str, Any]:
    """The winner's founder, its own hyperparameters, and the changes from one to the other with their steps.

    Args:
        steps: of a member, after each generation.
    """
    by_id, line = {birth.id: birth for birth in births}, [winner.index]
    while by_id[line[0]].parent is not None:
        line.insert(0, by_id[line[0]].parent)
    changed = [by_id[member] for member in line if by_id[member].kind == "rl_hp"]

    def named(birth: Any, values: Any) -> dict[str, Any]:  # a tournament changes one, and says its value alone
        return dict(values) if isinstance(values, dict) else {birth.path: values}

    return {
        "founder": line[0],
        "env_steps": steps[-1],
        "hyperparameters": {k: v for k, v in winner.hyperparameters().items() if isinstance(v, int | float)},
        "changes": [
            {"env_steps": steps[b.generation - 1], "before": named(b, b.before), "after": named(b, b.after)}
            for b in changed
        ],
    }


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    """Train one seed of one arm."""
    import agilerl

    load_everything(agilerl)
    kind = LongMeasurer if job["player"] is None else MatchMeasurer
    measurer = kind(job, CheckpointClock(job["cpu_budget"], None, CHECKPOINTS))
    run = agilerl.train(
        job["env"], config=job["config"], seed=job["key"]["seed"], evolution=job["evolution"], out=None, verbose=False,
        callbacks=[measurer],
    )  # fmt: skip
    cpu_seconds = round(measurer.cpu_seconds, 2)
    measurer.best = handed_over(run, measurer)
    measurer.job = {**job, "test_episodes": FINAL_EPISODES}
    curve = [{name: point[name] for name in ("cpu_seconds", "env_steps", "score")} for point in measurer.curve]
    return {
        "key": job["key"],
        "final": measurer.play(len(curve) + 1),
        "curve": curve,
        "cpu_seconds": cpu_seconds,
        "env_steps": run.result["env_steps_population"] + run.result["evaluation_env_steps"],
        "training_env_steps": run.result["env_steps_population"],
        "generations": len(run.history),
        "births": sum(birth.kind != "founder" for birth in run.lineage),
        "fitness": [list(map(told, row)) for row in run.history[:: max(1, len(run.history) // 10)]],
        "winner": winners_line(run.lineage, measurer.best, measurer.steps),
    }


def told(fitness: float) -> float | None:
    """A fitness for a line; None, which JSON has, for a member that has not finished an episode."""
    return round(fitness, 1) if math.isfinite(fitness) else None


# -- tables -----------------------------------------------------------------------------------------------------------


def path_of(task: str) -> Path:
    return RESULTS / f"long-{task.replace('/', '__').replace(':', '-').lower()}.jsonl"


def newest(task: str, members: int, seeds: list[int], budget: float) -> dict[str, dict[int, dict[str, Any]]]:
    """The last line of each (arm, seed) with this budget of CPU seconds."""
    lines: dict[str, dict[int, dict[str, Any]]] = {}
    for line in read_lines(path_of(task)):
        key = line["key"]
        is_size = key["members"] == members_of(key["arm"], members)
        if is_size and key["seed"] in seeds and key["cpu_budget"] == budget:
            lines.setdefault(key["arm"], {})[key["seed"]] = line
    return lines


def anytime(line: dict[str, Any], task: Task) -> float:
    """Mean share over the checkpoints: the area under the curve of what would be returned."""
    shares = [share(point["score"], task.random, task.good) for point in line["curve"]]
    return sum(shares) / len(shares) if shares else float("nan")


def way_of(arm: str) -> Arm:
    """The arm; of one that is no longer there, but has lines, what its name says."""
    return ARMS.get(arm, Arm({"evolution.scheme": "race"} if "race" in arm else {}, rules=arm.startswith("rule")))


def keeps_its_size(arm: str) -> bool:
    """Whether all members train to the end: no race."""
    way = way_of(arm)
    return not way.evolution or (way.plain and way.sets.get("evolution.scheme") != "race")


def us_per_step(lines: Iterable[dict[str, Any]]) -> float:
    """Median CPU microseconds of a training step of one member, with its share of evaluations."""
    return median(1e6 * line["cpu_seconds"] / line["training_env_steps"] for line in lines)


def baseline_of(arm: str, task: str) -> str:
    """Random search, with the rules where the arm has them."""
    return named_for("rule" if way_of(arm).rules else "random", task)


def one_agent_of(arm: str, task: str) -> str:
    """The arm of one agent that costs are compared with: as many environments, and the rules where the arm has them."""
    if not way_of(arm).plain:
        return "command-one"
    return named_for("rule-default" if way_of(arm).rules else "default", task)


def summary(
    task: str, members: int, seeds: list[int], against: str | None = None, cpu_seconds: float | None = None
) -> list[dict[str, Any]]:
    """A row per arm: scores, interquartile mean of their shares, anytime area, cost, P(improvement) over `against`."""
    about = TASKS[task]
    lines = newest(task, members, seeds, cpu_seconds or about.cpu_seconds)
    rows = []
    for arm, of_seeds in lines.items():
        ordered = [of_seeds[seed] for seed in sorted(of_seeds)]
        shares = [share(line["final"], about.random, about.good) for line in ordered]
        row = {
            "task": task, "arm": arm, "members": ordered[0]["key"]["members"], "seeds": sorted(of_seeds),
            "scores": [line["final"] for line in ordered], "iqm": rounded(interquartile_mean(shares)),
            "iqm_interval": [rounded(end) for end in interval([[shares]], lambda arms: interquartile_mean(arms[0]))],
            "profile": dict(zip(map(str, PROFILE), map(rounded, profile(shares, PROFILE)), strict=True)),
            "anytime": rounded(interquartile_mean([anytime(line, about) for line in ordered])),
            "env_steps": median(line["env_steps"] for line in ordered),
            "generations": median(line["generations"] for line in ordered),
            "us_per_step": rounded(us_per_step(ordered)),
        }  # fmt: skip
        alone = one_agent_of(arm, task)
        if alone in lines and keeps_its_size(arm):
            row["cost"] = rounded(row["members"] * us_per_step(ordered) / us_per_step(lines[alone].values()))
        other = against or baseline_of(arm, task)
        if arm != other and other in lines:
            pairs = shares_of_pairs(about, lines, arm, other)
            if pairs[0]:
                row["over"] = other
                row["better"] = compared([pairs])["probability_of_improvement"]
                row["common"] = len(pairs[0])  # seeds of both
        rows.append(row)
    return rows


def shares_of_pairs(task: Task, lines: Mapping[str, Mapping[int, Any]], arm: str, other: str) -> list[list[float]]:
    """Shares of an arm and of another one, by the seeds that both have."""
    common = sorted(set(lines.get(arm, {})) & set(lines.get(other, {})))
    return [[share(lines[each][seed]["final"], task.random, task.good) for seed in common] for each in (arm, other)]


def jobs_of(
    task: str, arms: Sequence[str], seeds: list[int], members: int, cpu_seconds: float | None, missing: bool
) -> list[dict[str, Any]]:
    """Jobs of a task, seed by seed; `missing`: without those that have a line, of whatever commit."""
    lines = newest(task, members, seeds, cpu_seconds or TASKS[task].cpu_seconds) if missing else {}
    asked = dict.fromkeys(named_for(arm, task) for arm in arms if ARMS[arm].only in (None, TASKS[task].algo))
    return [
        job_of(task, arm, seed, members_of(arm, members), cpu_seconds)
        for seed in seeds
        for arm in asked
        if seed not in lines.get(arm, {})
    ]


def main() -> None:
    parser = job_parser(__doc__, seeds="1000-1003", workers=2)
    parser.add_argument("--tasks", nargs="+", default=["Walker2d-v5:PPO", "BipedalWalker-v3:PPO"], choices=list(TASKS))
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--members", type=int, default=MEMBERS, help=f"of a population; {MEMBERS} if not given")
    parser.add_argument("--missing", action="store_true", help="without runs that have a line of another commit")
    parser.add_argument("--cpu-seconds", type=float, help="budget of a run; the task's if not given")
    parser.add_argument(
        "--against", choices=list(ARMS), help="the arm that others are compared with; random search if not given"
    )
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_one(json.loads(args.job))))
        return
    if not args.summary:  # seeds first, so that a stop leaves whole seeds of all arms
        for task in args.tasks:
            jobs = jobs_of(task, args.arms, args.seeds, args.members, args.cpu_seconds, args.missing)
            run_jobs(sys.argv[0], path_of(task), jobs, args.workers)
    for task in args.tasks:
        for row in summary(task, args.members, args.seeds, args.against, args.cpu_seconds):
            print(json.dumps(row))


if __name__ == "__main__":
    main()
