"""A budget in minutes: how many steps fit, by the speed of this machine in this environment."""

from __future__ import annotations

import time
from typing import Any

from agilerl.algorithms import find_algorithm
from agilerl.config import Manifest
from agilerl.errors import ConfigError
from agilerl.training.build import run_manifest

LEAST_GENERATIONS = 5
WITH_EVALUATION = 1.25  # what evaluations and confirmations cost beside training, by experience
TRIED = 512  # steps of one member in a generation of the trial, or a whole rollout


def steps_in(manifest: Manifest, env: Any, device: str, minutes: float) -> tuple[int, float, float]:
    """(budget of one member that takes about so many minutes, environment steps a second of all members, how many
    minutes it will take: more than were asked for where `LEAST_GENERATIONS` do).

    Two short generations are trained and thrown away; the second one is timed, because the first one warms up. Nothing
    of it reaches the run that follows, whose random streams are its own.

    Args:
        manifest: resolved. env: as it was handed over, None where it is made by its id.

    Raises:
        ConfigError: not a positive number, or language models, whose budget is prompts.
    """
    if not minutes > 0:
        raise ConfigError(f"minutes must be above 0; got {minutes!r}. fix: minutes=10.")
    experience = find_algorithm(manifest.algorithm.name).experience
    if getattr(find_algorithm(manifest.algorithm.name), "learns_language", False):
        raise ConfigError(
            f"minutes is of environments; {manifest.algorithm.name} counts {experience.steps}. fix: steps."
        )
    members, training = manifest.training.pop_size, manifest.training
    tried = max(TRIED, int(manifest.algorithm.hyperparameters.get("learn_step") or 0))
    changes = {
        "max_steps": 2 * tried, "evo_steps": tried, "evo_first": None, "eval_episodes": 1, "eval_screen": 0,
        "confirm_episodes": 0, "target_score": None,
        "learning_delay": 0, "random_steps": 0, "elite_rescore_episodes": 0, "patience": None,
    }  # fmt: skip
    trial = manifest.model_copy(update={"training": training.model_copy(update=changes)})
    ends: list[tuple[float, int]] = []
    run_manifest(
        trial, env, seed=training.seed, device=device, sinks=(), evolution=False,
        callbacks=[lambda record: ends.append((time.perf_counter(), record.population_env_steps))],
    )  # fmt: skip
    (begun, before), (ended, after) = ends[-2], ends[-1]
    rate = (after - before) / max(1e-6, ended - begun)
    steps = minutes * 60 * rate / WITH_EVALUATION / members
    generations = max(LEAST_GENERATIONS, round(steps / training.evo_steps))
    budget = generations * training.evo_steps
    return budget, rate, budget * members * WITH_EVALUATION / rate / 60
