"""Time budget: convert minutes to steps by the measured speed of this machine in the environment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from agilerl.algorithms import find_algorithm
from agilerl.config import Manifest, apply_overrides
from agilerl.core import foreign
from agilerl.core.ranges import Positive, check
from agilerl.runs.request import RunRequest
from agilerl.training.manifest.build import run_manifest
from agilerl.training.manifest.setup import Setup
from agilerl.training.manifest.step_cost import StepCost, cost_of

WITH_EVALUATION = 1.25  # empirical overhead of evaluations and confirmations
# Of a budget: the longest first generation, and the longest one after it. The run is saved after each of them, and can
# only end between two.
FIRST_GENERATION, MAX_GENERATION = 1 / 16, 1 / 8
MIN_VECTOR_STEPS = 16  # of a generation that is shortened to fit
MAX_EVALUATION = 0.3  # steps of evaluations per training step, of a run in minutes that does not set `eval_share`
TRIED, MIN_TRIAL_VECTOR_STEPS = 256, 8  # per member and trial generation: steps, and minimum vector steps
MAX_TRIAL_GENERATIONS = 8  # generations of the trial run
MARGIN = 2.0  # of an estimate: how much faster a run may become
LONG_ENOUGH = 1.0  # seconds to time
TOO_LONG, TRIAL_SHARE = 10.0, 0.05  # seconds, or share of the budget, after which one generation is enough


def check_minutes(manifest: Manifest, minutes: float) -> None:
    """Raise ConfigError for a time budget that is not positive and finite."""
    check("minutes", minutes, Positive, 10)


def steps_in(
    manifest: Manifest, env: foreign.EnvLike, device: str, minutes: float, check: Callable[[], None] = lambda: None,
    trials: dict[Any, Any] | None = None,
) -> tuple[int, float, float]:  # fmt: skip
    """Return `steps_of_simulator` where a trial would take much of the time, else `tried_steps`.

    Both are upper bounds: a run ends by its `Deadline`, which leaves time for the final evaluation.
    """
    check_minutes(manifest, minutes)
    cost = cost_of(manifest, env, minutes, trials)
    lanes = manifest.environment.num_envs * manifest.training.pop_size
    if cost is not None and (cost.is_slow or cost.start * lanes > TRIAL_SHARE * 60 * minutes):
        return steps_of_simulator(manifest, cost, minutes)
    return tried_steps(manifest, env, device, minutes, check)


def steps_of_simulator(manifest: Manifest, cost: StepCost, minutes: float) -> tuple[int, float, float]:
    """Return what `tried_steps` does, from the cost of a step alone.

    All the time goes into steps here, times `_margin`: the machine may have been busy when they were measured.
    """
    training, environment = manifest.training, manifest.environment
    processes = environment.of_workers.get("num_workers") or 1
    rate = processes / cost.mean
    unit = shortest_generation(with_short_generations(manifest, rate, minutes))
    budget = max(unit, int(_margin(manifest) * 60 * minutes * rate / training.pop_size))
    least = unit * training.pop_size * WITH_EVALUATION / rate / 60
    return budget, rate, max(minutes, least)


def shortest_generation(manifest: Manifest) -> int:
    """Steps of a member in the shortest generation of a run."""
    training = manifest.training
    return min(training.evo_steps, training.evo_first or training.evo_steps)


def with_short_generations(manifest: Manifest, rate: float, minutes: float) -> Manifest:
    """Shorten generations, and rollouts with them, so that several fit into the minutes, and bound their evaluations.

    A run begins with `FIRST_GENERATION` of its budget, no later generation takes more than `MAX_GENERATION`.
    Generations that are shorter anyway keep their length.

    Args:
        rate: environment steps per second of all members.
    """
    training, learn_step = manifest.training, manifest.algorithm.hyperparameters.get("learn_step")
    fewest, in_all = MIN_VECTOR_STEPS * manifest.environment.num_envs, 60 * minutes * rate / training.pop_size
    first, longest = (max(fewest, int(in_all * share)) for share in (FIRST_GENERATION, MAX_GENERATION))
    changes: dict[str, Any] = {}
    if first < shortest_generation(manifest):
        changes["training.evo_first"] = first
    if longest < training.evo_steps:
        changes["training.evo_steps"] = longest
    if learn_step is not None and learn_step > first and "learn_step" not in manifest.mutation.rl_hp_selection:
        changes["algorithm.learn_step"] = first
    acts = find_algorithm(manifest.algorithm.name).experience.has_training_episodes
    if training.eval_share is None and acts:
        changes["training.eval_share"] = MAX_EVALUATION
    return apply_overrides(manifest, changes, "minutes")


def tried_steps(
    manifest: Manifest, env: foreign.EnvLike, device: str, minutes: float, check: Callable[[], None] = lambda: None
) -> tuple[int, float, float]:
    """Return (most steps of a member in the minutes, environment steps per second of all members, expected minutes).

    The steps are those of the whole time left after the trial, and as many again (`_margin`), as a long run may be
    faster than its first second. Its `Deadline` ends it earlier, to leave time for the final evaluation. The expected
    minutes exceed the requested ones if a single generation takes longer.

    Short generations are trained and discarded until those after the first one, which is a warm-up, have taken a
    second. If the first one takes ten seconds, or a twentieth of the budget, it is the one timed. The trial does not
    affect the run, whose random streams are separate.

    Args:
        manifest: resolved. env: passed by the user, None if created from its id.
        check: called between vector steps; an exception it raises ends the trial and is propagated.

    Raises:
        ConfigError: not a positive number.
    """
    members = manifest.training.pop_size
    stopwatch = Stopwatch(time.perf_counter(), min(TOO_LONG, TRIAL_SHARE * 60 * minutes))
    request = RunRequest(env=env, evolution=False, callbacks=[stopwatch])
    run_manifest(Setup(trial_of(manifest), request, device), check=check, is_trial=True)
    check()  # the trial returns normally when interrupted with an agent, so raise here
    rate = stopwatch.rate
    unit = shortest_generation(with_short_generations(manifest, rate, minutes))
    remaining = max(0.0, minutes * 60 - (time.perf_counter() - stopwatch.looks[0][0]))
    generations = max(1, round(remaining * rate / WITH_EVALUATION / members / unit))
    budget = generations * unit
    expected = minutes - remaining / 60 + budget * members * WITH_EVALUATION / rate / 60
    most = budget if generations == 1 else math.ceil(budget * _margin(manifest))
    return most, rate, expected


def _margin(manifest: Manifest) -> float:
    """How much more than was measured a budget allows; 1 where schedules follow it, and have to reach their end."""
    scheduled = "linear" in manifest.algorithm.hyperparameters.values() or manifest.replay_buffer.prioritized
    return 1.0 if scheduled else MARGIN


def trial_of(manifest: Manifest) -> Manifest:
    """Return the manifest of the trial: short generations with minimal evaluations."""
    overrides, learn_step = {}, int(manifest.algorithm.hyperparameters.get("learn_step") or 1)
    tried = max(TRIED, MIN_TRIAL_VECTOR_STEPS * manifest.environment.num_envs)
    if learn_step > tried:  # shorten rollouts: the cost of learning per step barely depends on their length
        overrides = {"algorithm.learn_step": tried}
    changes = {
        "max_steps": MAX_TRIAL_GENERATIONS * tried, "evo_steps": tried, "evo_first": None, "eval_episodes": 1,
        "eval_screen": 0, "eval_steps": 1, "confirm_episodes": 0, "target_score": None,
        "learning_delay": 0, "random_steps": 0, "elite_rescore_episodes": 0, "patience": None,
    }  # fmt: skip
    trial = apply_overrides(manifest, overrides, "trial")
    return trial.model_copy(update={"training": trial.training.model_copy(update=changes)})


class Stopwatch:
    """Callback that times the generations of a trial, and ends it after enough of them."""

    def __init__(self, start: float, too_long: float = TOO_LONG) -> None:
        self.looks = [(start, 0)]  # (time, environment steps of all members)
        self.too_long = too_long

    def on_generation(self, record: Any) -> bool | None:
        self.looks.append((time.perf_counter(), record.population_env_steps))
        (start, _), (first, _), (now, _) = self.looks[0], self.looks[1], self.looks[-1]
        return False if now - first >= LONG_ENOUGH or now - start >= self.too_long else None

    @property
    def rate(self) -> float:
        """Environment steps per second."""
        begin = self.looks[1] if len(self.looks) > 2 else self.looks[0]
        (start, before), (end, after) = begin, self.looks[-1]
        return (after - before) / max(1e-6, end - start)
