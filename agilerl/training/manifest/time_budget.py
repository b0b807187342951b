"""A budget in minutes: how many steps fit, by the speed of this machine in this environment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from agilerl.algorithms import find_algorithm
from agilerl.config import Manifest, apply_overrides
from agilerl.errors import ConfigError
from agilerl.training.manifest.build import run_manifest

MIN_GENERATIONS = 5
WITH_EVALUATION = 1.25  # what evaluations and confirmations cost beside training, by experience
TRIED, LEAST_VECTOR_STEPS = 256, 8  # of one member in a generation of the trial: steps, and vector steps at least
MAX_TRIAL_GENERATIONS = 8  # generations of the trial
LONG_ENOUGH, TOO_LONG = 1.0, 10.0  # seconds that are timed, and those after which one generation is enough


def steps_in(
    manifest: Manifest, env: Any, device: str, minutes: float, check: Callable[[], None] = lambda: None
) -> tuple[int, float, float]:
    """(budget of one member that takes about so many minutes, environment steps a second of all members, how many
    minutes it will take: more than were asked for where `MIN_GENERATIONS` do).

    Short generations are trained and thrown away, until those after the first one, which warms up, have taken a second;
    where that one takes ten already it is what is timed. Nothing of it reaches the run that follows, whose random
    streams are its own.

    Args:
        manifest: resolved. env: as it was handed over, None where it is made by its id.
        check: called between vector steps; what it raises ends the trial, and is raised.

    Raises:
        ConfigError: not a positive number, or language models, whose budget is prompts.
    """
    if not minutes > 0:
        raise ConfigError(f"minutes must be above 0; got {minutes!r}. fix: minutes=10.")
    experience = find_algorithm(manifest.algorithm.name).experience
    if find_algorithm(manifest.algorithm.name).learns_language:
        raise ConfigError(
            f"minutes is of environments; {manifest.algorithm.name} counts {experience.steps}. fix: steps."
        )
    members, training = manifest.training.pop_size, manifest.training
    watch = Stopwatch(time.perf_counter())
    run_manifest(
        trial_of(manifest), env, seed=training.seed, device=device, sinks=(), evolution=False, check=check,
        callbacks=[watch],
    )  # fmt: skip
    check()  # a run that is stopped comes back if it has an agent to show
    rate = watch.rate
    unit = min(training.evo_steps, training.evo_first or training.evo_steps)
    generations = max(MIN_GENERATIONS, round(minutes * 60 * rate / WITH_EVALUATION / members / unit))
    budget = generations * unit
    return budget, rate, budget * members * WITH_EVALUATION / rate / 60


def trial_of(manifest: Manifest) -> Manifest:
    """What is trained and thrown away: generations of a few steps, that are hardly evaluated."""
    own, learn_step = {}, int(manifest.algorithm.hyperparameters.get("learn_step") or 1)
    tried = max(TRIED, LEAST_VECTOR_STEPS * manifest.environment.num_envs)
    if learn_step > tried:  # a rollout: what it costs to learn from a step hardly depends on how many there are
        own = {"algorithm.learn_step": tried}
    changes = {
        "max_steps": MAX_TRIAL_GENERATIONS * tried, "evo_steps": tried, "evo_first": None, "eval_episodes": 1,
        "eval_screen": 0, "eval_steps": 1, "confirm_episodes": 0, "target_score": None,
        "learning_delay": 0, "random_steps": 0, "elite_rescore_episodes": 0, "patience": None,
    }  # fmt: skip
    trial = apply_overrides(manifest, own, "trial")
    return trial.model_copy(update={"training": trial.training.model_copy(update=changes)})


class Stopwatch:
    """Hears of the generations of a trial, and ends it once enough has been timed."""

    def __init__(self, begun: float) -> None:
        self.looks = [(begun, 0)]  # (time, environment steps of all members)

    def on_generation(self, record: Any) -> bool | None:
        self.looks.append((time.perf_counter(), record.population_env_steps))
        (begun, _), (first, _), (now, _) = self.looks[0], self.looks[1], self.looks[-1]
        return False if now - first >= LONG_ENOUGH or now - begun >= TOO_LONG else None

    @property
    def rate(self) -> float:
        """Environment steps a second."""
        begin = self.looks[1] if len(self.looks) > 2 else self.looks[0]
        (begun, before), (ended, after) = begin, self.looks[-1]
        return (after - before) / max(1e-6, ended - begun)
