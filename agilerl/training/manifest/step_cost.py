"""Cost of an environment's steps, measured before a run, and the settings that follow from it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from agilerl.algorithms import DEFAULT_ALGORITHM, DEFAULT_FOR_BOX, find_algorithm, is_team
from agilerl.config import Manifest, apply_overrides, preset_for
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.host import count_waits
from agilerl.core.rng import Purpose, seeds, stream
from agilerl.core.texts import count
from agilerl.core.threads import available_cores
from agilerl.data.recording import is_bounded, random_policy
from agilerl.envs.healing import start_method
from agilerl.envs.lanes import SyncLanes, by_lane
from agilerl.envs.masks import MASK
from agilerl.envs.observed_masks import follow_masks
from agilerl.envs.simulators.classic import FAST
from agilerl.envs.simulators.mujoco import TASKS
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import EnvError

# A measurement lasts for an episode and at least `MIN_STEPS`, at most `MAX_STEPS`; shorter if time is up.
MIN_STEPS, MAX_STEPS, MIN_TIMED_STEPS = 64, 1000, 5
MIN_LIMIT_SECONDS, SHARE_OF_BUDGET, MAX_LIMIT_SECONDS = 1.0, 0.01, 5.0  # the longest for a budget in minutes
TRIED = 2  # processes in which an environment is tried
ROUND_TRIP_S = 5e-4  # that worker processes must save in a vector step; sending it to them and back costs about half
WORTH_WORKERS_S = 1.2e-4  # cost of a step in a row above which lanes run in several processes
SLOW_S = 1e-3  # cost of a step above which the simulator, not the updates, decides how long training takes
# Steps of a whole population up to which a learner that uses each of them many times is worth it in place of PPO. With
# 430,000 steps of 1 ms DQN was ahead (LunarLander), and SAC ahead on Pendulum and behind on Hopper.
FEW_STEPS = {DEFAULT_ALGORITHM: 1_000_000, DEFAULT_FOR_BOX: 100_000}
FOR_TRAINING = 0.75  # share of the time that is left beside evaluation, confirmation and the final evaluation
GENERATIONS, MIN_VECTOR_STEPS = 24, 25  # of a budget of few steps; of a generation
MAX_LANES = 64
SLOW_START_S, START_SHARE = 1.0, 1 / 16  # to make an environment that is slow to make; of a budget, to make all lanes
# Cost of a step beside which the updates of a preset for few steps take about half as long (benchmarks/slow.py).
BALANCED_S = {DEFAULT_ALGORITHM: 5e-3, DEFAULT_FOR_BOX: 1e-2}
PLAYED = (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.Box)  # actions that a measurement draws


class Clocks(NamedTuple):
    """Readings: wall and CPU seconds of this process, and how often it has waited for something other than a core."""

    wall: float
    cpu: float
    waits: int

    @classmethod
    def read(cls) -> Clocks:
        return cls(time.perf_counter(), time.process_time(), count_waits())

    def until(self, later: Clocks) -> float:
        """Return the seconds of a call, whoever else uses the machine: CPU time, but wall time if it waited."""
        wall = later.wall - self.wall
        return wall if later.waits > self.waits else min(wall, later.cpu - self.cpu)


@dataclass(frozen=True)
class StepCost:
    """Seconds of the calls of one environment with random actions, in one process; see `Clocks.until`.

    Attributes:
        p50, p95: quantiles of `step()`. reset: of `reset()`, its median. steps: number of steps measured.
        mean: of a step with its share of a reset, what a budget is planned by: the first steps of an episode may be its
            cheapest ones. Steps above p95 count as p95, and the first step and reset do not count.
        start: of making the environment. in_a_row: of a step without lanes and clocks, with its share of resets, which
            tells quick environments from each other; None if it was not measured.
    """

    p50: float
    p95: float
    reset: float
    steps: int
    mean: float
    start: float = 0.0
    in_a_row: float | None = None

    def __str__(self) -> str:
        p50, p95, reset, mean = (_milliseconds(part) for part in (self.p50, self.p95, self.reset, self.mean))
        return f"a step takes {p50} (95 % below {p95}), a reset {reset}, on average {mean} a step with resets"

    @property
    def is_slow(self) -> bool:
        return self.mean >= SLOW_S

    @property
    def is_worth_workers(self) -> bool:
        return (self.mean if self.in_a_row is None else self.in_a_row) >= WORTH_WORKERS_S

    def steps_in(self, minutes: float, cores: int) -> int:
        """Steps for which a budget in minutes leaves time on this many cores, beside evaluation."""
        return int(FOR_TRAINING * 60 * minutes * cores / max(self.mean, 1e-9))


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2g} ms" if seconds < 1 else f"{seconds:.2g} s"


def measure(env: Any, clocks: Callable[[], Clocks] = Clocks.read, *, minutes: float | None = None) -> StepCost | None:
    """Step a copy of an environment with random legal actions; None if it cannot be copied, or steps by batches.

    The first step is a warm-up. A measurement lasts for a whole episode if it can, without its first reset at most
    `MIN_LIMIT_SECONDS`, or `SHARE_OF_BUDGET` of a longer budget up to `MAX_LIMIT_SECONDS`.

    Args:
        env: result of `make_vect_envs`. clocks: read before and after each call. minutes: budget of the run.
    """
    if not foreign.can_replicate(env):
        return None
    before = Clocks.read()
    with contextlib.closing(env.replicate(1, reset_ended=False)) as lanes:
        return _timed(lanes, clocks, _limit(minutes), before.until(Clocks.read()))


def _limit(minutes: float | None) -> float:
    """Return the seconds of a measurement."""
    return min(MAX_LIMIT_SECONDS, max(MIN_LIMIT_SECONDS, SHARE_OF_BUDGET * 60 * (minutes or 0.0)))


def _timed(lanes: Any, clocks: Callable[[], Clocks], limit: float, seconds_made: float) -> StepCost | None:
    """Measure lanes of this process, which took `seconds_made` to make; see `measure`."""
    if not isinstance(lanes, SyncLanes) or not isinstance(lanes.single_action_space, PLAYED):
        return None
    if foreign.has_methods(lanes.envs[0].unwrapped, "make_lanes"):
        return None
    plain = follow_masks(lanes)
    policy = random_policy(lanes.single_action_space, stream(0, Purpose.RANDOM_PLAY, member=2))
    resets, steps, episodes, start = list[float](), list[float](), 0, 0.0
    while True:
        before = clocks()
        obs, info = plain.reset(None if resets else seeds(0, Purpose.RANDOM_PLAY, lanes.num_lanes))
        after = clocks()
        lanes.generators.end_watch()
        resets.append(before.until(after))
        start, is_over = start or after.wall, False
        while not is_over:
            action, before = policy(obs, info.get(MASK)), clocks()
            batch = plain.step(action)
            after = clocks()
            obs, info = batch.obs, batch.info
            is_over = bool((batch.terminated | batch.truncated)[0])
            episodes += is_over
            steps.append(before.until(after))
            is_enough = len(steps) > MIN_STEPS and (episodes > 0 or len(steps) > MAX_STEPS)
            if is_enough or (len(steps) > MIN_TIMED_STEPS and after.wall - start > limit):
                rest, reset = steps[1:], median(resets[1:] or resets)
                p95 = float(np.quantile(rest, 0.95))
                mean = float(np.minimum(rest, p95).mean()) + reset * max(1, episodes) / len(steps)
                is_quick = mean < SLOW_S and MASK not in info
                in_a_row = _in_a_row(lanes, partial(policy, obs, None), clocks) if is_quick else None
                return StepCost(median(rest), p95, reset, len(rest), mean, seconds_made, in_a_row)


def _in_a_row(lanes: SyncLanes, draw: Callable[[], Any], clocks: Callable[[], Clocks]) -> float:
    """Return the seconds of a step of the first environment, with its share of resets; draw: returns actions [1]."""
    env, actions = lanes.envs[0], [by_lane(lanes.single_action_space, draw())[0] for _ in range(MIN_STEPS)]
    env.reset()
    before = clocks()
    for action in actions:
        _, _, is_over, is_cut, _ = env.step(action)
        if is_over or is_cut:
            env.reset()
    return before.until(clocks()) / len(actions)


class Trial(NamedTuple):
    """What a short trial of an environment has shown.

    Attributes:
        cost: of a step; None if it was not measured. action_space: of the environment.
        reason: why it cannot be stepped in several processes, "" if it can.
    """

    cost: StepCost | None
    action_space: gym.Space[Any]
    reason: str = ""


Trials = dict[tuple[str, str, int], Trial]
COPIED = "they would draw the same numbers, from a generator that each process has a copy of"


def trial(
    name: str, kwargs: Mapping[str, Any], env: foreign.EnvLike, minutes: float | None = None,
    is_wanted: Callable[[gym.Space[Any]], bool] = lambda space: True,
) -> Trial:  # fmt: skip
    """Measure an environment, in worker processes so that it is known to work there, else in this one.

    Args:
        name: id. kwargs: of an environment that is created from it. env: a function that makes it, None for the id.
        minutes: budget. is_wanted: whether environments with this action space are to be measured.
    """
    make: dict[str, Any] = {"make_env": env} if env is not None else {"env_name": name, **kwargs}
    may_step_apart = available_cores() > 1 and (env is not None or bool(kwargs) or name not in FAST)
    is_quick, reason = start_method() == "fork", ""  # other processes take seconds to start
    try:
        if may_step_apart and is_quick:
            return _tried(make, _limit(minutes), is_wanted)
    except EnvError as error:
        reason = _reason(error)
    with contextlib.closing(make_vect_envs(**make)) as vector:
        space = vector.single_action_space
        cost = measure(vector, minutes=minutes) if is_wanted(space) else None
    try:
        if may_step_apart and not is_quick and cost is not None and cost.is_worth_workers:
            _tried(make, 0.0, is_wanted)
    except EnvError as error:
        reason = _reason(error)
    return Trial(cost, space, reason)


def _reason(error: EnvError) -> str:
    return " ".join(str(error).partition(" fix:")[0].split())


def _tried(make: Mapping[str, Any], limit: float, is_wanted: Callable[[gym.Space[Any]], bool]) -> Trial:
    """Try environments in worker processes, and measure one for `limit` seconds; see `trial`.

    Raises:
        EnvError: they do not work there.
    """
    start = time.perf_counter()
    options: dict[str, Any] = {"num_envs": TRIED, "num_workers": TRIED, "healing": True}
    vector: Any = make_vect_envs(**make, **options)  # makes one, to describe it
    timed = partial(_timed, clocks=Clocks.read, limit=limit, seconds_made=time.perf_counter() - start)
    with contextlib.closing(vector):
        space = vector.single_action_space
        if not is_wanted(space):
            return Trial(None, space)
        with contextlib.closing(vector.replicate(1, reset_ended=False)) as lanes:
            if _are_copied(lanes.apply(_two_starts)):
                raise EnvError(COPIED)
            return Trial(lanes.apply(timed, workers=1)[0], space)


def _tried_once(
    trials: Trials | None, name: str, kwargs: Mapping[str, Any], env: foreign.EnvLike, *others: Any
) -> Trial:
    """Return the trial in `trials` of an environment, by how it is made; else try it, and add what was measured."""
    key = name, repr(sorted(kwargs.items())), id(env)
    tried = (trials or {}).get(key) or trial(name, kwargs, env, *others)
    if tried.cost is not None and trials is not None:
        trials[key] = tried
    return tried


def _two_starts(lanes: SyncLanes) -> list[Any]:
    """Return the first observations of two episodes with one seed."""
    return [lanes.reset(seeds(0, Purpose.DETERMINISM, lanes.num_lanes))[0] for _ in range(2)]


def _are_copied(starts: Sequence[Sequence[Any]]) -> bool:
    """Whether episodes with one seed differ within a process and are the same in all, whose state is a copy.

    starts: [processes, 2].
    """

    def is_same(one: Any, other: Any) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(trees.leaves(one), trees.leaves(other), strict=True))

    first, second = starts[0]
    return not is_same(first, second) and all(is_same(first, other[0]) for other in starts[1:])


def _trial_of(manifest: Manifest, env: foreign.EnvLike, minutes: float | None, trials: Trials | None) -> Trial | None:
    """Try the environment that a manifest trains in; None where `measure` cannot, or without one.

    env: passed by the user; None if it is created from its id. minutes: budget of the run.
    """
    is_object = env is not None and (not callable(env) or isinstance(env, gym.Env | gym.vector.VectorEnv))
    acts = find_algorithm(manifest.algorithm.name).experience.has_training_episodes
    environment = manifest.environment
    if is_object or is_team(manifest.algorithm.name) or not acts or environment.backend != "gymnasium":
        return None
    return _tried_once(trials, environment.name, environment.kwargs, env, minutes)


def cost_of(
    manifest: Manifest, env: foreign.EnvLike, minutes: float | None, trials: Trials | None = None
) -> StepCost | None:
    """Measure a step of the environment that a manifest trains in; None where that is not possible."""
    return tried.cost if (tried := _trial_of(manifest, env, minutes, trials)) else None


def lanes_in(cost: StepCost, lanes: int, members: int, minutes: float) -> int:
    """Return how many of a member's lanes `START_SHARE` of a budget makes, one after another, if that takes long."""
    if cost.start <= SLOW_START_S:
        return lanes
    return min(lanes, max(1, int(START_SHARE * 60 * minutes / cost.start / members)))


def with_lane_workers(
    manifest: Manifest, env: foreign.EnvLike, cores: int, minutes: float | None = None, trials: Trials | None = None
) -> tuple[Manifest, str]:
    """Have lanes step in worker processes where that is faster and they can, which makes no difference to results.

    A manifest with `environment.healing` or `num_workers` decides by itself. Of environments that are slow to make,
    members have as many as `START_SHARE` of a budget in minutes suffices for.

    Returns:
        The manifest, and a line that says so, or why they step in this process; "" where that is faster.
    """
    environment, members = manifest.environment, manifest.training.pop_size
    steps_on_threads = env is None and not environment.kwargs and environment.name in TASKS
    if environment.healing or environment.num_workers is not None or cores < 2 or steps_on_threads:
        return manifest, ""
    tried = _trial_of(manifest, env, minutes, trials)
    if tried is None or tried.cost is None:
        return manifest, ""
    cost, note, fitting = tried.cost, "", environment.num_envs
    if minutes is not None and cost.start > SLOW_START_S:
        fitting = lanes_in(cost, fitting, members, minutes)
        note = f"an environment takes {_milliseconds(cost.start)} to make: {fitting} of each member\n"
        manifest = apply_overrides(manifest, {"environment.num_envs": fitting}, "lanes")
    workers = min(cores, lanes := fitting * members)
    if not cost.is_worth_workers or lanes * cost.mean * (1 - 1 / workers) < ROUND_TRIP_S:
        return manifest, note.rstrip()
    if tried.reason:
        return manifest, f"{note}{cost}: environments step in this process, as in several {tried.reason}"
    note += f"{cost}: environments step in {workers} processes"
    apart = {"environment.healing": True} if cost.is_slow else {}  # else this process is one of them
    return apply_overrides(manifest, {"environment.num_workers": workers, **apart}, "lanes"), note


def few_steps_algorithm(space: gym.Space[Any]) -> str | None:
    """Return the algorithm that learns most from few steps with these actions; None without one."""
    if isinstance(space, gym.spaces.Discrete):
        return DEFAULT_ALGORITHM
    return DEFAULT_FOR_BOX if isinstance(space, gym.spaces.Box) and is_bounded(space) else None


@dataclass(frozen=True)
class Choice:
    """Starting values that were chosen by the cost of a step, and the line that says so."""

    manifest: Manifest
    note: str


def for_few_steps(
    env_id: str, algo: str | None, env: foreign.EnvLike, kwargs: Mapping[str, Any], minutes: float,
    trials: Trials | None = None,
) -> Choice | None:  # fmt: skip
    """Return the starting values for a simulator that decides how long training takes; None for any other.

    Few steps call for a learner that uses each of them many times: from replay that all members share, with several
    updates per step, which run while the lanes step in processes of their own.

    Args:
        env_id: name of the environment. algo: asked for; None: by the actions. env: a function that makes it; None if
            it is created from its id, with `kwargs`.
        minutes: budget.
    """

    tried = _tried_once(
        trials, env_id, kwargs, env, minutes,
        lambda space: (usual := few_steps_algorithm(space)) is not None and algo in (None, usual),
    )  # fmt: skip
    usual, cost = few_steps_algorithm(tried.action_space), tried.cost
    if usual is None or cost is None or not cost.is_slow:
        return None
    cores = 1 if tried.reason else available_cores()
    manifest = preset_for(env_id, usual, few_steps=True)
    members = manifest.training.pop_size
    every = cost.steps_in(minutes, cores)
    if every > FEW_STEPS[usual]:
        return None
    lanes = max(lanes_in(cost, manifest.environment.num_envs, members, minutes), -(-min(cores, MAX_LANES) // members))
    budget = max(1, every // members)
    where = (
        f"this process, as in several {tried.reason}" if tried.reason else f"{min(cores, members * lanes)} processes"
    )
    note = (
        f"{cost}: about {count(every)} steps of all members, so that {usual} learns from each of them many times; "
        f"environments step in {where}"
    )
    workers = {} if tried.reason else {"environment.healing": True, "environment.num_workers": cores}
    learn_step = float(manifest.algorithm.hyperparameters["learn_step"]) * max(1.0, BALANCED_S[usual] / cost.mean)
    chosen = apply_overrides(
        manifest,
        {
            # Updates leave the steps their time.
            "algorithm.learn_step": learn_step if learn_step < 1 else round(learn_step),
            "environment.num_envs": lanes, **workers,
            "training.max_steps": budget,
            "training.evo_first": MIN_VECTOR_STEPS * lanes,
            "training.evo_steps": max(MIN_VECTOR_STEPS * lanes, budget // GENERATIONS),
        },
        "few steps",
    )  # fmt: skip
    return Choice(chosen, note)
