"""Published multi-agent off-policy training function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from agilerl.collect.teams.transitions import TeamTransitions
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
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
def train_multi_agent_off_policy(
    env: foreign.Env, env_name: str, algo: str | None = None, pop: list[Any] | None = None,
    memory: MultiAgentReplayBuffer | None = None, sum_scores: bool = True, INIT_HP: dict[str, Any] | None = None,
    MUT_P: dict[str, Any] | None = None, swap_channels: bool = False, max_steps: int = 50_000, evo_steps: int = 25,
    eval_steps: int | None = None, eval_loop: Count = 1, learning_delay: int = 0, target: float | None = None,
    tournament: TournamentSelection | None = None, mutation: Mutations | None = None, checkpoint: int | None = None,
    checkpoint_path: str | None = None, overwrite_checkpoints: bool = False, save_elite: bool = False,
    elite_path: str | None = None, wb: bool = False, verbose: bool = True,
    accelerator: foreign.Accelerator | None = None, wandb_api_key: str | None = None,
    wandb_kwargs: dict[str, Any] | None = None, *, seed: int | None = None, lockstep: bool = True,
    carry_envs: bool = False, learner: str = "auto", threads: int | None = None, sinks: Sequence[Sink] = (),
    callbacks: Sequence[Any] = (), resume: str | os.PathLike[str] | None = None, eps_start: float = 1.0,
    eps_end: float = 0.1, eps_decay: float = 0.995,
) -> tuple[list[Any], list[list[Any]]]:  # fmt: skip
    """Train a population of teams off-policy and evolve it; return the trained population and its fitnesses.

    Steps are environment steps of one member, in which all agents act once. A population of N makes N times as many.

    Args:
        env: result of `make_multi_agent_vect_envs` or `agilerl.vector`, or one parallel PettingZoo environment, in
            which members train one after another; never closed.
        pop: the teams.
        memory: shared replay buffer: `MultiAgentReplayBuffer`, or any other of the package, with n-step returns
            (`MultiStepReplayBuffer`), prioritized (`PrioritizedReplayBuffer`) or both.
        eps_start, eps_end, eps_decay: exploration rate of VDN and QMIX, multiplied by `eps_decay` every vector step;
            other teams ignore it.
        sum_scores: a team's return is the sum over its agents. False: a row with the return of each agent; members are
            selected by its mean.

    Returns:
        (population, fitnesses), `fitnesses[generation][member]`: a number, or with `sum_scores=False` a list [M], in
        the order of `agent_ids`.
    """
    request = Request("train_multi_agent_off_policy", locals())
    return request.run(lambda options: TeamTransitions(env, memory, options, sum_scores=sum_scores))
