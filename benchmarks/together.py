"""Question: do members that learn from one replay reach a target in fewer environment steps than one agent does?

    python benchmarks/together.py --tasks lunarlander --arms one shared apart fixed --seeds 0-9
    python benchmarks/together.py --summary

Arms have the same lanes, and the same updates per environment step unless their name says otherwise:

* shared: N members that learn from one replay, with selection; the mean of their policies (`training.ensemble`) is
  evaluated and handed over. leader: the same, but the member with the best training returns is. fixed: shared without
  selection.
* apart: N members with a replay of their own each (`training.share=shard`), with selection and as an ensemble.
* one: one agent with all lanes, all environment steps and all updates. one-few: with as many updates as each of N has.
* rows: shared, with the steps of evaluation episodes in the replay too.
* mean: shared, with the mean of all members' target networks in each target (MeanQ, arXiv:2209.07670), in torch.
* past: one agent of PPO that learns from its last two rollouts (GePPO, arXiv:2111.00072).

**Steps until the target.** After every generation a referee plays greedy episodes that nothing else has seen, with the
agent that would be handed over. The first agent whose 100 episodes reach the target ends the run. Evaluation steps
count, those of the referee do not, nor does its time. On tasks with `step_ms` every step sleeps that long, as one that
waits for a simulator elsewhere does; the referee's do not.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import gymnasium
import numpy as np
import torch
from peers_clock import TreeCpu
from runner import RESULTS, grouped, job_parser, package_commit, read_lines, run_jobs
from slow import process_times
from slow_envs import FIRST_REFEREE_SEED, sleeping

LINES = RESULTS / "together.jsonl"
Clock = Callable[[Mapping[str, Any]], float]
CLOCKS: dict[str, Clock] = {
    "env_steps": lambda used: used["env_steps"],
    "cpu_seconds": lambda used: used["cpu_seconds"],
    "wall_seconds": lambda used: used["wall_seconds"],
}
EPISODES, FIRST_EPISODES = 100, 25  # the rest is played if the first ones reach the target


@dataclass(frozen=True)
class Task:
    """An environment with a preset.

    Attributes:
        few_steps: whether the preset is that of few steps. members: of the preset.
        env_steps: training steps of all members together, after which a run is censored.
        one: settings of one agent with all updates. few: of one agent with the updates of one of N, which trains for
            twice as many environment steps, as they cost it less. step_ms: how long a step sleeps.
    """

    env: str
    algo: str
    target: float
    env_steps: int
    members: int
    one: dict[str, Any]
    few: dict[str, Any]
    few_steps: bool = False
    step_ms: float = 0.0

    def env_id(self) -> str:
        """Return the id of the environment to train on; registers it if its steps sleep."""
        return sleeping(self.env, self.step_ms) if self.step_ms else self.env


TASKS = {
    "lunarlander": Task(
        "LunarLander-v3", "DQN", 200.0, 240_000, 4,
        {"environment.num_envs": 32, "training.evo_steps": 20_000, "training.max_steps": 480_000,
         "training.learning_delay": 8_000, "algorithm.lr": 5e-4},
        {"environment.num_envs": 32, "training.evo_steps": 20_000, "training.max_steps": 480_000,
         "training.learning_delay": 8_000, "algorithm.learn_step": 4},
    ),
    "cartpole": Task(
        "CartPole-v1", "DQN", 475.0, 30_000, 4,
        {"environment.num_envs": 8, "training.evo_steps": 2_000, "training.max_steps": 100_000,
         "training.learning_delay": 800},
        {"environment.num_envs": 8, "training.evo_steps": 2_000, "training.max_steps": 100_000,
         "training.learning_delay": 800, "algorithm.learn_step": 0.5},
        True, 10.0,
    ),
    "pendulum": Task(
        "Pendulum-v1", "SAC", -160.0, 20_000, 2,
        {"environment.num_envs": 4, "training.evo_steps": 1_000, "training.max_steps": 50_000,
         "training.learning_delay": 400, "training.random_steps": 400},
        {"environment.num_envs": 4, "training.evo_steps": 1_000, "training.max_steps": 50_000,
         "training.learning_delay": 400, "training.random_steps": 400, "algorithm.learn_step": 0.25},
        True, 10.0,
    ),
    "hopper": Task(
        "Hopper-v5", "SAC", 2_000.0, 300_000, 4,
        {"environment.num_envs": 32, "training.evo_steps": 20_000, "training.max_steps": 400_000,
         "training.learning_delay": 8_000, "training.random_steps": 8_000},
        {"environment.num_envs": 32, "training.evo_steps": 20_000, "training.max_steps": 400_000,
         "training.learning_delay": 8_000, "training.random_steps": 8_000, "algorithm.learn_step": 4},
    ),
    "breakout": Task(
        "MinAtar/Breakout-v1", "DQN", 8.0, 400_000, 4,
        {"environment.num_envs": 32, "training.evo_steps": 20_000, "training.evo_first": 5_000,
         "training.max_steps": 400_000, "training.learning_delay": 2_000},
        {"environment.num_envs": 32, "training.evo_steps": 20_000, "training.evo_first": 5_000,
         "training.max_steps": 400_000, "training.learning_delay": 2_000, "algorithm.learn_step": 8},
    ),
    "lander-ppo": Task(
        "LunarLander-v3", "PPO", 200.0, 600_000, 4,
        {"environment.num_envs": 32, "training.evo_steps": 20_480, "training.max_steps": 800_000,
         "algorithm.learn_step": 4_096},
        {},
    ),
}  # fmt: skip


def settings_of(task: Task, arm: str) -> dict[str, Any]:
    """Return what an arm changes of the task's preset."""
    alone = {"training.pop_size": 1, "training.eval_members": None, "training.ensemble": False,
             "evolution.founders": "equal"}  # fmt: skip
    together = {"training.eval_members": None, "training.ensemble": True}
    return {
        "one": {**alone, **task.one},
        "past": {**alone, **task.one},
        "one-few": {**alone, **task.few},
        "leader": {"training.eval_members": 1, "training.ensemble": False},
        "apart": {**together, "training.shards": task.members, "training.share": "shard"},
    }.get(arm, together)


def average_targets() -> None:
    """Have all updates of this process use the mean of the target networks of a group, on each member's own batch."""
    from agilerl.engine.rows.rows_engine import RowsEngine

    def of_all(run: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        """Outputs [..., N, B, out], of which each is the mean over the N members' networks."""
        count, rows = inputs[0].shape[:2]
        flat = [x.reshape(1, count * rows, *x.shape[2:]).expand(count, -1, *x.shape[2:]) for x in inputs]
        output = run(*flat)
        return output.view(*output.shape[:-2], count, rows, output.shape[-1]).mean(-4)

    def frozen_and_target(self: Any, name: str) -> Any:
        return lambda obs: (self.frozen(name)(obs), of_all(self.target(name), obs))

    def targets(self: Any, names: tuple[str, ...]) -> Any:
        return lambda *inputs: of_all(targets_of(self, names), *inputs)

    targets_of = RowsEngine.targets
    RowsEngine.frozen_and_target, RowsEngine.targets = frozen_and_target, targets


def keep_evaluations() -> None:
    """Have the transitions of all evaluation episodes of this process added to the replay, after each evaluation."""
    from agilerl.collect import evaluator
    from agilerl.collect.off_policy import OffPolicyCollector

    memories, open_collector, evaluate = [], OffPolicyCollector.open, evaluator.evaluate

    def opened(self: Any, *args: Any, **options: Any) -> None:
        open_collector(self, *args, **options)
        memories.append(self.shared[0].memories["memory"])

    class Recorded:
        """Lanes whose transitions are kept."""

        def __init__(self, lanes: Any) -> None:
            self.lanes, self.rows, self.obs = lanes, [], None

        def __getattr__(self, name: str) -> Any:
            return getattr(self.lanes, name)

        def reset(self, seeds: Any = None) -> Any:
            self.obs, info = self.lanes.reset(seeds)
            return self.obs, info

        def step(self, actions: np.ndarray, active: Any = None) -> Any:
            batch = self.lanes.step(actions, active)
            space = self.lanes.single_action_space
            stored = actions if isinstance(space, gymnasium.spaces.Discrete) else actions / space.high
            self.rows.append((self.obs, stored, batch.reward, batch.final_obs, batch.terminated, batch.mask))
            self.obs = batch.obs
            return batch

    def recorded(actor: Any, lanes: Any, *args: Any, **options: Any) -> Any:
        kept = Recorded(lanes)
        result = evaluate(actor, kept, *args, **options)
        for row in kept.rows:
            memories[0].write(*row)
        return result

    OffPolicyCollector.open, evaluator.evaluate = opened, recorded


def reuse_rollouts(past: int) -> None:
    """Have PPO learn from its last `past` rollouts in each update of this process (GePPO, arXiv:2111.00072).

    Rows of earlier policies get the values and probabilities of the present one, advantages whose trace is cut by the
    probability ratio (V-trace, arXiv:1802.01561, eq. 1, c = λ min(1, ratio)), and the ratio as their weight, which is
    GePPO's objective with the clip scaled by the ratio.
    """
    from agilerl.algorithms.base import on_policy
    from agilerl.engine import rollouts
    from agilerl.losses.returns import following_values, gae, standardised

    window: list[tuple[Any, rollouts.StoredRollout]] = []  # raw observations and what was stored, the newest first

    def make(learner: Any, group: int, members: Any, buffer: Any, like: torch.Tensor) -> Any:
        now, policy = rollouts.StoredRollout.read(learner, group, members, buffer, like), learner.groups[group]
        window.insert(0, (now.merged(buffer.stored("obs")).clone(), now))
        del window[past:]
        parts = [part(policy, members[0], *old, i == 0) for i, old in enumerate(window)]
        log_prob, value, advantage, returns, weight, counts = (torch.cat(x, 1) for x in zip(*parts, strict=True))
        scaled = standardised(advantage, counts / counts.sum(1, keepdim=True)) * weight
        obs = policy.prepare(torch.cat([raw for raw, _ in window], 1))
        action = torch.cat([old.common["action"] for _, old in window], 1)
        samples = [np.flatnonzero(row) for row in counts.bool().numpy()]
        return rollouts.Rollout(obs, action, torch.stack((log_prob, value, scaled, returns), -1), None, samples)

    def part(policy: Any, member: Any, raw: Any, stored: Any, is_new: bool) -> tuple[torch.Tensor, ...]:
        log_prob, value = stored.log_prob, stored.value
        if not is_new:
            value = policy.values(policy.prepare(raw)).view_as(value)
            kind = member.distribution
            log_prob = kind.log_prob(policy.outputs(raw), stored.common["action"]).view_as(log_prob).to(log_prob)
        ratio = (log_prob - stored.log_prob).clamp(-5, 5).exp()
        after = following_values(value, stored.last)
        for i, steps, lanes, values in stored.finals:
            after[i, steps, lanes] = values
        before_gap = torch.cat((~stored.valid[:, 1:], torch.zeros_like(stored.valid[:, :1])), 1)
        cut = stored.terminated | stored.truncated | ~stored.valid | before_gap
        following = torch.cat((ratio[:, 1:], torch.ones_like(ratio[:, :1])), 1).clamp(max=1)
        discount = stored.gamma * (~stored.terminated).to(value.dtype)
        advantage = gae(stored.reward, discount, value, after, cut, stored.lam * following)
        returns = value + ratio.clamp(max=1) * advantage
        counts = stored.valid.to(value.dtype)
        return tuple(x.flatten(1) for x in (log_prob, value, advantage, returns, ratio.clamp(max=2), counts))

    on_policy.make_rollout = make


class Referee:
    """Plays greedy episodes side by side, on the same seeds for every policy."""

    def __init__(self, env_id: str, target: float) -> None:
        self.target = target
        from agilerl.core.env_ids import resolve_env_id

        self.envs = [gymnasium.make(resolve_env_id(env_id)) for _ in range(EPISODES)]

    def score(self, act: Callable[[np.ndarray], np.ndarray]) -> float:
        """Mean return of the first episodes, or of all of them if the first ones reach the target."""
        first = self._returns(act, range(FIRST_EPISODES))
        if mean(first) < self.target:
            return mean(first)
        return mean([*first, *self._returns(act, range(FIRST_EPISODES, EPISODES))])

    def _returns(self, act: Callable[[np.ndarray], np.ndarray], numbers: range) -> list[float]:
        observations = {i: self.envs[i].reset(seed=FIRST_REFEREE_SEED + i)[0] for i in numbers}
        returns = dict.fromkeys(numbers, 0.0)
        while observations:
            actions = act(np.stack(list(observations.values())))
            for i, action in zip(list(observations), actions, strict=True):
                observations[i], reward, terminated, truncated, _ = self.envs[i].step(action)
                returns[i] += float(reward)
                if terminated or truncated:
                    del observations[i]
        return list(returns.values())


class UntilTarget:
    """A callback that has the referee meet the best agent of each generation, without counting the time."""

    def __init__(self, task: Task, env_steps: int) -> None:
        self.task, self.env_steps, self.referee = task, env_steps, Referee(task.env, task.target)
        self.curve: list[list[Any]] = []  # env_steps, score of the best agent, CPU seconds, fitness
        self.newest: Any = None
        self.score = float("-inf")
        self.reached: dict[str, Any] | None = None
        self.last: dict[str, Any] = {}
        self.meter = TreeCpu(process_times)
        self.cpu, self.wall = self.meter(), time.perf_counter()

    def on_best(self, agent: Any) -> None:
        self.newest = agent

    def on_generation(self, record: Any) -> bool | None:
        used = {
            "env_steps": record.population_env_steps + record.evaluation_env_steps,
            "training_env_steps": record.population_env_steps,
            "cpu_seconds": round(self.meter() - self.cpu, 2),
            "wall_seconds": round(time.perf_counter() - self.wall, 2),
        }
        cpu, wall, self.last = time.process_time(), time.perf_counter(), used
        if self.newest is not None:
            self.score, self.newest = self.referee.score(self.newest.act), None
        fitness = max(member.fitness for member in record.members)
        self.curve.append([used["env_steps"], round(self.score, 1), used["cpu_seconds"], round(fitness, 1)])
        if self.score >= self.task.target:
            self.reached = used
        self.cpu += time.process_time() - cpu
        self.wall += time.perf_counter() - wall
        return False if self.reached or used["training_env_steps"] >= self.env_steps else None


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    """Train one arm from one seed until the referee is satisfied."""
    key = job["key"]
    if key["arm"] == "mean":  # kernels in C have targets of their own members alone
        os.environ["AGILERL_NATIVE"] = "0"
    import agilerl
    from agilerl.training.stop_rule import StopRule

    if key["arm"] == "rows":
        keep_evaluations()
    if key["arm"] == "mean":
        average_targets()
    if key["arm"] == "past":
        reuse_rollouts(2)
    task, decide = TASKS[key["task"]], StopRule.decide
    task.env_id()

    def watched(self: StopRule, now: Any, is_last: bool) -> Any:
        """Leave it to the referee to stop; evaluations end early where the target is out of reach."""
        return decide(self, replace(now, options=replace(now.options, target=None)), is_last)

    StopRule.decide = watched
    watch = UntilTarget(task, task.env_steps * (2 if key["arm"] == "one-few" else 1))
    evolution = key["arm"] not in ("one", "one-few", "fixed", "past")
    run = agilerl.train(
        config=job["config"], seed=key["seed"], out=None, verbose=False, evolution=evolution, callbacks=[watch]
    )
    return {
        "key": key, "reached": watch.reached, **(watch.reached or watch.last), "stopped": run.result["stopped"],
        "curve": watch.curve,
    }  # fmt: skip


def jobs_for(name: str, arm: str, seeds: list[int], sets: dict[str, str]) -> list[dict[str, Any]]:
    from agilerl.config import apply_overrides, apply_sets, preset_for

    task = TASKS[name]
    manifest = preset_for(task.env, task.algo, few_steps=task.few_steps)
    changes = {"environment.name": task.env_id(), "training.target_score": task.target, **settings_of(task, arm)}
    manifest = apply_overrides(manifest, changes)
    manifest = apply_sets(manifest, [f"{key}={value}" for key, value in sets.items()])
    base = {"task": name, "arm": arm, "commit": package_commit(), **({"sets": sets} if sets else {})}
    return [{"key": {**base, "seed": seed}, "config": manifest.as_dict()} for seed in seeds]


def sooner(ours: dict[str, Any], theirs: dict[str, Any], clock: Clock) -> float:
    """1 if the first run was at the target before the second one, 0 if after it, 0.5 if the runs do not decide it."""
    x, y = (None if line["reached"] is None else clock(line["reached"]) for line in (ours, theirs))
    if x is not None and y is not None:
        return float(x < y) + 0.5 * float(x == y)
    if x is not None:
        return 1.0 if x <= clock(theirs) else 0.5  # the other one was censored later, or before it could tell
    return 0.5 if y is None or y > clock(ours) else 0.0


def compared(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], clock: Clock) -> str:
    """P(a run of ours is sooner) with its 95 % interval, a percentile bootstrap over the runs of both."""
    wins = np.array([[sooner(x, y, clock) for y in theirs] for x in ours])
    rng, (rows, columns) = np.random.default_rng(0), wins.shape
    drawn = [wins[rng.integers(0, rows, rows)][:, rng.integers(0, columns, columns)].mean() for _ in range(2_000)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return f"{wins.mean():.2f} ({low:.2f} to {high:.2f})"


def summary(seeds: list[int]) -> None:
    """One line per arm: environment steps in thousands and CPU seconds by seed; None: not within the budget. After them
    P(the population is sooner) beside each other arm of its task. Of several lines the newest counts; each names its
    commit."""
    newest: dict[str, dict[str, Any]] = {}
    for line in read_lines(LINES):
        key = {name: value for name, value in line["key"].items() if name != "commit"}
        if key["seed"] in seeds:
            newest[json.dumps(key)] = {**line, "key": key}
    groups = grouped(newest.values())
    for group, lines in groups:
        shown = {**group, "seeds": [line["key"]["seed"] for line in lines]}
        shown["reached"] = [x["reached"] and round(x["reached"]["env_steps"] / 1000) for x in lines]
        shown["cpu_seconds"] = [round(line["cpu_seconds"]) for line in lines]
        print(json.dumps(shown))
    for group, ours in groups:
        for other, theirs in groups if group["arm"] == "shared" else ():
            if other != group and {**other, "arm": "shared"} == group:
                by = {name: compared(ours, theirs, clock) for name, clock in CLOCKS.items()}
                print(json.dumps({"task": group["task"], "shared beside": other["arm"], **by}))


def main() -> None:
    parser = job_parser(__doc__, seeds="0-9", workers=2)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--arms", nargs="+", default=["one", "one-few", "shared", "leader", "fixed", "apart"])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="changes of every arm")
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_one(json.loads(args.job))))
        return
    if not args.summary:
        sets = dict(text.split("=", 1) for text in args.set)
        by_arm = [jobs_for(task, arm, args.seeds, sets) for task in args.tasks for arm in args.arms]
        run_jobs(sys.argv[0], LINES, [job for jobs in zip(*by_arm, strict=True) for job in jobs], args.workers)
    summary(args.seeds)


if __name__ == "__main__":
    main()
