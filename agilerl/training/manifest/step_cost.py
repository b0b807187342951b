"""Cost of an environment's steps, measured before a run, and the settings that follow from it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

from agilerl import foreign
from agilerl.algorithms import DEFAULT_ALGORITHM, DEFAULT_FOR_BOX, find_algorithm, is_team
from agilerl.config import Manifest, apply_overrides, preset_for
from agilerl.data.recording import is_bounded, random_policy
from agilerl.envs.healing import HealingLanes
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.masks import MASK
from agilerl.envs.observed_masks import follow_masks
from agilerl.envs.vector import make_vect_envs
from agilerl.rng import Purpose, seeds, stream
from agilerl.telemetry.console import count
from agilerl.threads import available_cores

# A measurement lasts for an episode and at least `MANY_STEPS`, at most `MOST_STEPS`; shorter if time is up.
MANY_STEPS, MOST_STEPS, FEWEST_STEPS = 64, 1000, 5
MOST_SECONDS, SHARE_OF_BUDGET, LONGEST_SECONDS = 1.0, 0.01, 5.0  # for a budget in minutes up to `LONGEST_SECONDS`
ROUND_TRIP_S = 5e-4  # that worker processes must save in a vector step; sending it to them and back costs about half
WORTH_WORKERS_S = 1e-4  # cost of a step above which lanes run in worker processes
SLOW_S = 1e-3  # cost of a step above which the simulator, not the updates, decides how long training takes
# Steps of a whole population up to which a learner that uses each of them many times is worth it in place of PPO. With
# 430,000 steps of 1 ms DQN was ahead (LunarLander), and SAC ahead on Pendulum and behind on Hopper.
FEW_STEPS = {DEFAULT_ALGORITHM: 1_000_000, DEFAULT_FOR_BOX: 100_000}
FOR_TRAINING = 0.75  # share of the time that is left beside evaluation, confirmation and the closing test
GENERATIONS = 24  # in a budget of few steps
FEWEST_VECTOR_STEPS = 25  # of a generation
MOST_LANES = 64
# Cost of a step beside which the updates of a preset for few steps take about half as long (benchmarks/slow.py).
BALANCED_S = {DEFAULT_ALGORITHM: 5e-3, DEFAULT_FOR_BOX: 1e-2}
PLAYED = (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.Box)  # actions that a measurement draws


@dataclass(frozen=True)
class StepCost:
    """Wall seconds of the calls of one environment with random actions, in one process.

    Attributes:
        p50, p95: quantiles of `step()`. reset: of `reset()`, its median. steps: number of steps measured.
        mean: of a step with its share of a reset, what a budget is planned by: the first steps of an episode may be its
            cheapest ones. Steps above p95 count as p95, since something else on the machine may have taken that time.
    """

    p50: float
    p95: float
    reset: float
    steps: int
    mean: float

    def __str__(self) -> str:
        p50, p95, reset, mean = (_milliseconds(part) for part in (self.p50, self.p95, self.reset, self.mean))
        return f"a step takes {p50} (95 % below {p95}), a reset {reset}, on average {mean} a step with resets"

    @property
    def is_slow(self) -> bool:
        return self.mean >= SLOW_S

    @property
    def is_worth_workers(self) -> bool:
        return self.mean >= WORTH_WORKERS_S

    def steps_in(self, minutes: float, cores: int) -> int:
        """Steps for which a budget in minutes leaves time on this many cores, beside evaluation."""
        return int(FOR_TRAINING * 60 * minutes * cores / max(self.mean, 1e-9))


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2g} ms" if seconds < 1 else f"{seconds:.2g} s"


def measure(
    env: Any, clock: Callable[[], float] = time.perf_counter, *, minutes: float | None = None
) -> StepCost | None:
    """Step a copy of an environment with random legal actions; None if it cannot be copied, or steps by batches.

    The first step is a warm-up. A measurement lasts for a whole episode if it can, without its first reset at most
    `MOST_SECONDS`, or `SHARE_OF_BUDGET` of a longer budget up to `LONGEST_SECONDS`.

    Args:
        env: result of `make_vect_envs` for one environment. clock: monotonic, in seconds. minutes: budget of the run.
    """
    limit = min(LONGEST_SECONDS, max(MOST_SECONDS, SHARE_OF_BUDGET * 60 * (minutes or 0.0)))
    if not foreign.can_replicate(env):
        return None
    with contextlib.closing(env.replicate(1)) as plain:
        space = plain.single_action_space
        if not isinstance(plain, SyncLanes | HealingLanes) or not isinstance(space, PLAYED):
            return None
        lanes, policy = follow_masks(plain), random_policy(space, stream(0, Purpose.RANDOM_PLAY, member=2))
        resets, steps, made, ended, begun = list[float](), list[float](), 0, 0, 0.0
        while True:
            before = clock()
            obs, info = lanes.reset(seeds(0, Purpose.RANDOM_PLAY, 1, generation=len(resets)))
            resets.append(clock() - before)
            begun = begun if ended else clock()
            is_over = False
            while not is_over:
                action, before = policy(obs, info.get(MASK)), clock()
                batch = lanes.step(action)
                now = clock()
                obs, info = batch.obs, batch.info
                is_over = bool((batch.terminated | batch.truncated)[0])
                made, ended = made + 1, ended + is_over
                if not is_over:  # the last step of an episode includes a reset
                    steps.append(now - before)
                calls = max(len(steps), len(resets))  # episodes of one step are resets alone
                is_enough = calls > MANY_STEPS and (ended > 0 or calls > MOST_STEPS)
                if is_enough or (calls > FEWEST_STEPS and now - begun > limit):
                    rest = steps[1:] or [now - before]
                    p95, reset = float(np.quantile(rest, 0.95)), median(resets)
                    share = reset * max(1, ended) / made if steps else 0.0
                    mean = float(np.minimum(rest, p95).mean()) + share
                    return StepCost(median(rest), p95, reset, len(rest), mean)


def cost_of(manifest: Manifest, env: Any = None, *, minutes: float | None = None) -> StepCost | None:
    """Measure a step of the environment that a manifest trains in; None where `measure` cannot, or without one.

    env: passed by the user; None if it is created from its id. minutes: budget of the run.
    """
    is_object = env is not None and (not callable(env) or isinstance(env, gym.Env | gym.vector.VectorEnv))
    acts = find_algorithm(manifest.algorithm.name).experience.has_training_episodes
    if is_object or is_team(manifest.algorithm.name) or not acts:
        return None
    environment = manifest.environment
    if environment.backend != "gymnasium":
        return None
    with contextlib.closing(_one(environment.name, environment.kwargs, env)) as made:
        return measure(made, minutes=minutes)


def _one(name: str, kwargs: Mapping[str, Any], env: Any) -> Any:
    return make_vect_envs(make_env=env) if env is not None else make_vect_envs(name, **kwargs)


def with_lane_workers(manifest: Manifest, env: Any, cores: int) -> tuple[Manifest, StepCost | None]:
    """Have lanes step in worker processes where that is faster, which makes no difference to results.

    A manifest with `environment.healing` or `num_workers` decides by itself.

    Returns:
        The manifest, and the cost of a step; None unless it was measured.
    """
    environment, lanes = manifest.environment, manifest.environment.num_envs * manifest.training.pop_size
    if environment.healing or environment.num_workers is not None or cores < 2:
        return manifest, None
    cost = cost_of(manifest, env)
    workers = min(cores, lanes)
    if cost is None or not cost.is_worth_workers or lanes * cost.mean * (1 - 1 / workers) < ROUND_TRIP_S:
        return manifest, cost
    chosen = {"environment.healing": True, "environment.num_workers": workers}
    return apply_overrides(manifest, chosen, "lanes"), cost


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


def for_few_steps(env_id: str, algo: str | None, env: Any, kwargs: Mapping[str, Any], minutes: float) -> Choice | None:
    """Return the starting values for a simulator that decides how long training takes; None for any other.

    Few steps call for a learner that uses each of them many times: from replay that all members share, with several
    updates per step, which run while the lanes step in processes of their own.

    Args:
        env_id: name of the environment. algo: asked for; None: by the actions. env: a function that makes it; None if
            it is created from its id, with `kwargs`.
        minutes: budget.
    """
    cores = available_cores()
    with contextlib.closing(_one(env_id, kwargs, env)) as made:
        usual = few_steps_algorithm(made.single_action_space)
        if usual is None or (algo is not None and algo != usual):
            return None
        cost = measure(made, minutes=minutes)
    if cost is None or not cost.is_slow:
        return None
    manifest = preset_for(env_id, usual, few_steps=True)
    members = manifest.training.pop_size
    every = cost.steps_in(minutes, cores)
    if every > FEW_STEPS[usual]:
        return None
    lanes = max(manifest.environment.num_envs, -(-min(cores, MOST_LANES) // members))
    budget = max(1, every // members)
    note = (
        f"{cost}: about {count(every)} steps of all members, so that {usual} learns from each of them many times; "
        f"environments step in {min(cores, members * lanes)} processes"
    )
    each = float(manifest.algorithm.hyperparameters["learn_step"]) * max(1.0, BALANCED_S[usual] / cost.mean)
    chosen = apply_overrides(
        manifest,
        {
            "algorithm.learn_step": each if each < 1 else round(each),  # updates leave the steps their time
            "environment.num_envs": lanes, "environment.healing": True, "environment.num_workers": cores,
            "training.max_steps": budget,
            "training.evo_first": FEWEST_VECTOR_STEPS * lanes,
            "training.evo_steps": max(FEWEST_VECTOR_STEPS * lanes, budget // GENERATIONS),
        },
        "few steps",
    )  # fmt: skip
    return Choice(chosen, note)
