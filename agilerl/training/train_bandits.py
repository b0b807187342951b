"""Published bandit training function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from agilerl.collect.bandit import BanditCollector
from agilerl.core import foreign
from agilerl.core.arguments import checked
from agilerl.core.ranges import Count
from agilerl.envs.bandit import BanditEnv, is_bandit, rounds_of
from agilerl.envs.vector import make_vect_envs
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.telemetry.record import Sink
from agilerl.training.published import Request, completed
from agilerl.training.train_off_policy import train_off_policy


@checked
@completed(train_off_policy)
def train_bandits(
    env: foreign.EnvLike, env_name: str, algo: str | None = None, pop: list[Any] | None = None, memory: Any = None,
    INIT_HP: dict[str, Any] | None = None, MUT_P: dict[str, Any] | None = None, swap_channels: bool = False,
    max_steps: int = 20_000, episode_steps: int = 500, evo_steps: int = 2_500, eval_steps: int | None = 500,
    eval_loop: Count = 1, target: float | None = None, tournament: TournamentSelection | None = None,
    mutation: Mutations | None = None, checkpoint: int | None = None, checkpoint_path: str | None = None,
    overwrite_checkpoints: bool = False, save_elite: bool = False, elite_path: str | None = None, wb: bool = False,
    verbose: bool = True, accelerator: foreign.Accelerator | None = None, wandb_api_key: str | None = None,
    wandb_kwargs: dict[str, Any] | None = None, *, seed: int | None = None, lockstep: bool = True,
    learner: str = "auto", threads: int | None = None, sinks: Sequence[Sink] = (), callbacks: Sequence[Any] = (),
    resume: str | os.PathLike[str] | None = None,
) -> tuple[list[Any], list[list[float]]]:  # fmt: skip
    """Train a population of bandits and evolve it; return the trained population and its fitnesses.

    Steps are rounds of one member. Members share one memory, so that each learns from the choices of all.
    `agent.regret` is the cumulative regret by generation.

    Args:
        env: a `BanditEnv`, an object with its interface, or a (vector) environment whose observations are the contexts
            of all arms. Members act at the same time with a `BanditEnv` and in environments of `make_vect_envs`.
        memory: shared replay buffer. It holds the contexts of chosen arms, and their rewards.
        max_steps: rounds per member.
        evo_steps: rounds per member between evaluations.
        episode_steps: rounds of a training episode, whose sum of rewards is a score; of no effect on learning.
        eval_steps: rounds of an evaluation.
        eval_loop: evaluations per member and generation; fitness is their mean.
        target: fitness at which the run ends, of at most `eval_steps` if rewards are at most 1.
    """
    asked = {**locals(), "carry_envs": False}
    eval_env = env
    if is_bandit(env):
        asked["env"], eval_env = (_lanes_of(env, rounds) for rounds in (episode_steps, eval_steps or episode_steps))
    request = Request("train_bandits", asked)
    return request.run(lambda options: BanditCollector(asked["env"], memory, options, eval_env=eval_env))


def _lanes_of(bandit: object, rounds: int) -> Any:
    """Return one environment with episodes of this many rounds, which can be replicated if it is a `BanditEnv`."""
    if isinstance(bandit, BanditEnv):
        return make_vect_envs(make_env=partial(rounds_of, bandit, rounds), num_envs=1)
    return rounds_of(bandit, rounds)
