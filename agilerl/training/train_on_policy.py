"""Published on-policy training function."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from agilerl.collect.rollouts import OnPolicyCollector
from agilerl.core import foreign
from agilerl.core.arguments import checked
from agilerl.core.ranges import Count
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.telemetry.record import Sink
from agilerl.training.published import Request, completed
from agilerl.training.train_off_policy import train_off_policy


@checked
@completed(train_off_policy)
def train_on_policy(
    env: foreign.Env, env_name: str, algo: str | None = None, pop: list[Any] | None = None,
    INIT_HP: dict[str, Any] | None = None, MUT_P: dict[str, Any] | None = None, swap_channels: bool = False,
    max_steps: int = 1_000_000, evo_steps: int = 10_000, eval_steps: int | None = None, eval_loop: Count = 1,
    target: float | None = None, tournament: TournamentSelection | None = None, mutation: Mutations | None = None,
    checkpoint: int | None = None, checkpoint_path: str | None = None, overwrite_checkpoints: bool = False,
    save_elite: bool = False, elite_path: str | None = None, wb: bool = False, verbose: bool = True,
    accelerator: foreign.Accelerator | None = None, wandb_api_key: str | None = None,
    wandb_kwargs: dict[str, Any] | None = None, collect_rollouts_fn: Callable[..., Any] | None = None, *,
    seed: int | None = None, lockstep: bool = True, carry_envs: bool = False, learner: str = "auto",
    threads: int | None = None,
    sinks: Sequence[Sink] = (), callbacks: Sequence[Any] = (), resume: str | os.PathLike[str] | None = None,
) -> tuple[list[Any], list[list[float]]]:  # fmt: skip
    """Train a population on-policy and evolve it; return the trained population and its fitnesses.

    Steps are environment steps of one member; a population of N makes N times as many. A generation consists of whole
    rollouts, `ceil(evo_steps / rollout)` of them; `agent.steps` holds the actual number of steps.

    Args:
        collect_rollouts_fn: custom collection instead of lockstep rollouts: `fn(agent, env, n_steps)` fills
            `agent.rollout_buffer`, like `rollouts.on_policy.collect_rollouts`. If it returns a tuple, that is passed to
            its next call as last_obs, last_done, last_scores, last_info. One member trains at a time.
    """
    request = Request("train_on_policy", locals())
    return request.run(lambda options: OnPolicyCollector(env, options, collect_rollouts_fn))
