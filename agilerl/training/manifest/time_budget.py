"""Time budget: convert minutes to steps by the measured speed of this machine in the environment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from agilerl.algorithms import find_algorithm
from agilerl.config import Manifest, apply_overrides
from agilerl.errors import ConfigError
from agilerl.training.manifest.build import run_manifest
from agilerl.training.manifest.step_cost import StepCost, cost_of

WITH_EVALUATION = 1.25  # empirical overhead of evaluations and confirmations
TRIED, LEAST_VECTOR_STEPS = 256, 8  # per member and trial generation: steps, and minimum vector steps
MAX_TRIAL_GENERATIONS = 8  # generations of the trial run
MARGIN = 2.0  # of an estimate: how much faster a run may become
LONG_ENOUGH, TOO_LONG = 1.0, 10.0  # seconds to time, and seconds after which one generation is enough


def check_minutes(manifest: Manifest, minutes: float) -> None:
    """Raise ConfigError for a time budget that is not positive and finite, or for a language model.

    The budget of a language model is in prompts.
    """
    if not 0 < minutes < math.inf:
        raise ConfigError(f"minutes must be above 0 and finite; got {minutes!r}. fix: minutes=10.")
    algorithm = find_algorithm(manifest.algorithm.name)
    if algorithm.learns_language:
        raise ConfigError(
            f"minutes is for environments; {manifest.algorithm.name} counts {algorithm.experience.steps}. fix: steps."
        )


def steps_in(
    manifest: Manifest, env: Any, device: str, minutes: float, check: Callable[[], None] = lambda: None
) -> tuple[int, float, float]:
    """Return `steps_of_simulator` where steps are so slow that a trial would take much of the time, else `tried_steps`.

    Both are upper bounds: a run ends by its `Deadline`, which leaves time for the closing test.
    """
    check_minutes(manifest, minutes)
    cost = cost_of(manifest, env, minutes=minutes)
    if cost is not None and cost.is_slow:
        return steps_of_simulator(manifest, cost, minutes)
    return tried_steps(manifest, env, device, minutes, check)


def steps_of_simulator(manifest: Manifest, cost: StepCost, minutes: float) -> tuple[int, float, float]:
    """Return what `tried_steps` does, from the cost of a step alone.

    All the time goes into steps here, times `_margin`: the machine may have been busy when they were measured.
    """
    training, environment = manifest.training, manifest.environment
    processes = environment.of_workers.get("num_workers") or 1
    rate = processes / cost.mean
    unit = min(training.evo_steps, training.evo_first or training.evo_steps)
    budget = max(unit, int(_margin(manifest) * 60 * minutes * rate / training.pop_size))
    least = unit * training.pop_size * WITH_EVALUATION / rate / 60
    return budget, rate, max(minutes, least)


def tried_steps(
    manifest: Manifest, env: Any, device: str, minutes: float, check: Callable[[], None] = lambda: None
) -> tuple[int, float, float]:
    """Return (most steps of a member in the minutes, environment steps per second of all members, expected minutes).

    The steps are those of the whole time left after the trial, and as many again (`_margin`), as a long run may be
    faster than its first second; it ends earlier, by its `Deadline`, to leave time for the closing test. The expected
    minutes exceed the requested ones if a single generation takes longer.

    Short generations are trained and discarded until those after the first one, which is a warm-up, have taken a
    second. If the first one takes ten seconds, it is the one timed. The trial does not affect the run, whose random
    streams are separate.

    Args:
        manifest: resolved. env: passed by the user, None if created from its id.
        check: called between vector steps; an exception it raises ends the trial and is propagated.

    Raises:
        ConfigError: not a positive number, or language models, whose budget is in prompts.
    """
    members, training = manifest.training.pop_size, manifest.training
    stopwatch = Stopwatch(time.perf_counter())
    run_manifest(
        trial_of(manifest), env, seed=training.seed, device=device, sinks=(), evolution=False, check=check,
        callbacks=[stopwatch],
    )  # fmt: skip
    check()  # the trial returns normally when interrupted with an agent, so raise here
    rate = stopwatch.rate
    unit = min(training.evo_steps, training.evo_first or training.evo_steps)
    left = max(0.0, minutes * 60 - (time.perf_counter() - stopwatch.looks[0][0]))
    generations = max(1, round(left * rate / WITH_EVALUATION / members / unit))
    budget = generations * unit
    expected = minutes - left / 60 + budget * members * WITH_EVALUATION / rate / 60
    most = budget if generations == 1 else math.ceil(budget * _margin(manifest))
    return most, rate, expected


def _margin(manifest: Manifest) -> float:
    """How much more than was measured a budget allows; 1 where schedules follow it, and have to reach their end."""
    scheduled = "linear" in manifest.algorithm.hyperparameters.values() or manifest.replay_buffer.prioritized
    return 1.0 if scheduled else MARGIN


def trial_of(manifest: Manifest) -> Manifest:
    """Return the manifest of the trial: short generations with minimal evaluations."""
    overrides, learn_step = {}, int(manifest.algorithm.hyperparameters.get("learn_step") or 1)
    tried = max(TRIED, LEAST_VECTOR_STEPS * manifest.environment.num_envs)
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

    def __init__(self, begun: float) -> None:
        self.looks = [(begun, 0)]  # (time, environment steps of all members)

    def on_generation(self, record: Any) -> bool | None:
        self.looks.append((time.perf_counter(), record.population_env_steps))
        (begun, _), (first, _), (now, _) = self.looks[0], self.looks[1], self.looks[-1]
        return False if now - first >= LONG_ENOUGH or now - begun >= TOO_LONG else None

    @property
    def rate(self) -> float:
        """Environment steps per second."""
        begin = self.looks[1] if len(self.looks) > 2 else self.looks[0]
        (begun, before), (ended, after) = begin, self.looks[-1]
        return (after - before) / max(1e-6, ended - begun)
