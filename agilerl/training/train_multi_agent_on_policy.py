"""Published multi-agent on-policy training function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from agilerl.algorithms.base.declared import TEAM_ROLLOUTS
from agilerl.collect import collector_for
from agilerl.core import foreign
from agilerl.core.arguments import checked
from agilerl.core.ranges import Count
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.telemetry.record import Sink
from agilerl.training.published import Request, completed
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy


@checked
@completed(train_multi_agent_off_policy)
def train_multi_agent_on_policy(
    env: foreign.Env, env_name: str, algo: str | None = None, pop: list[Any] | None = None, sum_scores: bool = True,
    INIT_HP: dict[str, Any] | None = None, MUT_P: dict[str, Any] | None = None, swap_channels: bool = False,
    max_steps: int = 50_000, evo_steps: int = 25, eval_steps: int | None = None, eval_loop: Count = 1,
    target: float | None = None, tournament: TournamentSelection | None = None, mutation: Mutations | None = None,
    checkpoint: int | None = None, checkpoint_path: str | None = None, overwrite_checkpoints: bool = False,
    save_elite: bool = False, elite_path: str | None = None, wb: bool = False, verbose: bool = True,
    accelerator: foreign.Accelerator | None = None, wandb_api_key: str | None = None,
    wandb_kwargs: dict[str, Any] | None = None, *, opponents: str | None = None, seed: int | None = None,
    lockstep: bool = True, carry_envs: bool = False, learner: str = "auto", threads: int | None = None,
    sinks: Sequence[Sink] = (), callbacks: Sequence[Any] = (), resume: str | os.PathLike[str] | None = None,
) -> tuple[list[Any], list[list[Any]]]:  # fmt: skip
    """Train a population of teams on-policy and evolve it; return the trained population and its fitnesses.

    Args:
        pop: the teams: IPPO, MAPPO, or custom ones with `agent_ids`, `get_action(observations, infos)` (four
            dictionaries by agent), `learn(experiences)`, `test` and `clone`; see
            `agilerl.collect.custom.rollouts`.
        opponents: "self", for games of two agents of one group: in half of the lanes one seat is played by a frozen
            past policy of the population, and fitness is the return of a member's seat against a fixed set of them; see
            `agilerl.collect.teams.self_play`. None: the member plays both seats and learns from both.
    """
    request = Request("train_multi_agent_on_policy", locals())
    return request.run(lambda options: collector_for(TEAM_ROLLOUTS, opponents)(env, options, sum_scores=sum_scores))
