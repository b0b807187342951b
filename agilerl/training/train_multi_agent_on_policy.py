"""Published multi-agent on-policy training function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from agilerl.algorithms.base.adapted import adapted
from agilerl.algorithms.base.declared import TEAM_ROLLOUTS
from agilerl.algorithms.base.wrapped import unwrapped
from agilerl.collect import collector_for
from agilerl.collect.custom.learn import trains_by_learn
from agilerl.core.options import LoopOptions
from agilerl.errors import AlgorithmError
from agilerl.telemetry.record import Sink
from agilerl.training.population import set_lanes
from agilerl.training.published import Request, check_rollouts, check_teams


def train_multi_agent_on_policy(
    env: Any,
    env_name: str,
    algo: str | None = None,
    pop: list[Any] | None = None,
    sum_scores: bool = True,
    INIT_HP: dict[str, Any] | None = None,
    MUT_P: dict[str, Any] | None = None,
    swap_channels: bool = False,
    max_steps: int = 50_000,
    evo_steps: int = 25,
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
    *,
    opponents: str | None = None,
    seed: int | None = None,
    lockstep: bool = True,
    carry_envs: bool = False,
    learner: str = "auto",
    threads: int = 1,
    sinks: Sequence[Sink] = (),
    callbacks: Sequence[Any] = (),
    resume: str | os.PathLike[str] | None = None,
) -> tuple[list[Any], list[list[Any]]]:
    """Train a population of teams on-policy and evolve it; return the trained population and its fitnesses.

    Args:
        env: result of `agilerl.vector` or `make_multi_agent_vect_envs`, or a parallel PettingZoo environment.
        pop: the teams: IPPO, MAPPO, or custom ones with `agent_ids`, `get_action(observations, infos)` (four
            dictionaries by agent), `learn(experiences)`, `test` and `clone`; see
            `agilerl.collect.custom.team_rollouts`.
        sum_scores: a team's return is the sum over its agents. False: a row with the return of each agent; members are
            selected by its mean.
        opponents: "self", for games of two agents of one group: in half of the lanes one seat is played by a frozen
            past policy of the population, and fitness is the return of a member's seat against a fixed set of them; see
            `agilerl.collect.teams.self_play`. None: the member plays both seats and learns from both.
        others: see `agilerl.training.train_off_policy.train_off_policy`.

    Returns:
        (population, fitnesses), `fitnesses[generation][member]`: a number, or with `sum_scores=False` a list [M], in
        the order of `agent_ids`.

    Raises:
        AlgorithmError, ConfigError, EnvError: incompatible arguments.
    """
    request = Request("train_multi_agent_on_policy", dict(locals()))
    check_teams(request.population, env, are_teams=True)
    check_rollouts(request.population)
    for team in request.population:
        _check_experience(team)
    request.check()
    set_lanes(request.population, request.num_envs)
    options = request.options(LoopOptions)
    kind = collector_for(TEAM_ROLLOUTS, options.opponents)
    return request.run(kind(env, options, sum_scores=sum_scores), options)


def _check_experience(team: Any) -> None:
    """Raise AlgorithmError for a team that does not learn from rollouts, unless it has a custom `learn`."""
    declared = adapted(unwrapped(team)).experience
    if declared is not None and declared.name != TEAM_ROLLOUTS.name and not trains_by_learn(team):
        raise AlgorithmError(
            f"{type(team).__name__} does not learn from rollouts of several agents. "
            "fix: IPPO or MAPPO; train_multi_agent_off_policy for replay, train_on_policy for one agent."
        )
