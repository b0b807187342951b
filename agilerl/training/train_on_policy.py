"""Published on-policy training function."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from agilerl.collect.rollouts import OnPolicyCollector
from agilerl.core.options import LoopOptions
from agilerl.telemetry.record import Sink
from agilerl.training.population import set_lanes
from agilerl.training.published import Request, check_rollouts, check_teams


def train_on_policy(
    env: Any,
    env_name: str,
    algo: str | None = None,
    pop: list[Any] | None = None,
    INIT_HP: dict[str, Any] | None = None,
    MUT_P: dict[str, Any] | None = None,
    swap_channels: bool = False,
    max_steps: int = 1_000_000,
    evo_steps: int = 10_000,
    eval_steps: int | None = None,
    eval_loop: int = 1,
    target: float | None = None,
    tournament: Any = None,
    mutation: Any = None,
    checkpoint: int | None = None,
    checkpoint_path: str | None = None,
    overwrite_checkpoints: bool = False,
    save_elite: bool = False,
    elite_path: str | None = None,
    wb: bool = False,
    verbose: bool = True,
    accelerator: Any = None,
    wandb_api_key: str | None = None,
    wandb_kwargs: dict[str, Any] | None = None,
    collect_rollouts_fn: Callable[..., Any] | None = None,
    *,
    seed: int | None = None,
    lockstep: bool = True,
    carry_envs: bool = False,
    learner: str = "auto",
    threads: int = 1,
    sinks: Sequence[Sink] = (),
    callbacks: Sequence[Any] = (),
    resume: str | os.PathLike[str] | None = None,
) -> tuple[list[Any], list[list[float]]]:
    """Train a population on-policy and evolve it; return the trained population and its fitnesses.

    Steps are environment steps of one member; a population of N makes N times as many. A generation consists of whole
    rollouts, `ceil(evo_steps / rollout)` of them; `agent.steps` holds the actual number of steps.

    Args:
        env, env_name, algo, pop: the environment (never closed), its name, the algorithm's name, the agents.
        max_steps, evo_steps: environment steps per member, in total and between evaluations.
        eval_loop: evaluation rounds. target: mean fitness at which the run ends.
        tournament, mutation: without either, the population is not evolved.
        collect_rollouts_fn: custom collection instead of lockstep rollouts: `fn(agent, env, n_steps)` fills
            `agent.rollout_buffer`, like `rollouts.on_policy.collect_rollouts`. If it returns a tuple, that is passed to
            its next call as last_obs, last_done, last_scores, last_info. One member trains at a time.
        resume: folder that makes the run resumable: the next call with it continues from the last save.
        others: see `agilerl.training.train_off_policy.train_off_policy`, which also has more detail on these.

    Returns:
        (population, fitnesses), `fitnesses[generation][member]`.

    Raises:
        NotAvailableYetError: an argument that is not supported yet.
        AlgorithmError, ConfigError: incompatible arguments.
    """
    request = Request("train_on_policy", dict(locals()))
    check_teams(request.population, env, are_teams=False)
    check_rollouts(request.population)
    request.check()
    set_lanes(request.population, request.num_envs)
    options = request.options(LoopOptions)
    return request.run(OnPolicyCollector(env, options, collect_rollouts_fn), options)
