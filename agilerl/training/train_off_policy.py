"""Published off-policy training function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.components.uniform import ReplayBuffer
from agilerl.core import foreign
from agilerl.core.arguments import checked
from agilerl.core.ranges import Count
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.telemetry.record import Sink
from agilerl.training.published import Request


@checked
def train_off_policy(
    env: foreign.Env, env_name: str, algo: str | None = None, pop: list[Any] | None = None,
    memory: ReplayBuffer | None = None, INIT_HP: dict[str, Any] | None = None, MUT_P: dict[str, Any] | None = None,
    swap_channels: bool = False, max_steps: int = 1_000_000, evo_steps: int = 10_000, eval_steps: int | None = None,
    eval_loop: Count = 1, learning_delay: int = 0, eps_start: float = 1.0, eps_end: float = 0.1,
    eps_decay: float = 0.995, target: float | None = None, n_step: bool = False, per: bool = False,
    n_step_memory: ReplayBuffer | None = None, tournament: TournamentSelection | None = None,
    mutation: Mutations | None = None, checkpoint: int | None = None, checkpoint_path: str | None = None,
    overwrite_checkpoints: bool = False, save_elite: bool = False, elite_path: str | None = None, wb: bool = False,
    verbose: bool = True, accelerator: foreign.Accelerator | None = None, wandb_api_key: str | None = None,
    wandb_kwargs: dict[str, Any] | None = None, *, seed: int | None = None, lockstep: bool = True,
    carry_envs: bool = False, learner: str = "auto", threads: int | None = None, sinks: Sequence[Sink] = (),
    callbacks: Sequence[Any] = (), resume: str | os.PathLike[str] | None = None,
) -> tuple[list[Any], list[list[float]]]:  # fmt: skip
    """Train a population off-policy and evolve it; return the trained population and its fitnesses.

    Steps are environment steps of one member; a population of N makes N times as many.

    Args:
        env: environment or vector environment; never closed.
        env_name: name for records and files.
        algo: algorithm name for records and files; by default that of the population.
        pop: the agents.
        memory: shared replay buffer.
        INIT_HP, MUT_P: recorded with the run (they were used to make `pop` and `mutation`).
        swap_channels: images are [H, W, C].
        max_steps: environment steps per member.
        evo_steps: steps per member between evaluations.
        eval_steps: truncate evaluation episodes at this step; None plays them to the end.
        eval_loop: evaluation rounds, of one episode per environment of `env` each.
        learning_delay: steps of the whole population stored before learning starts.
        eps_start, eps_end, eps_decay: exploration rate, multiplied by `eps_decay` every vector step.
        target: stop after the first generation whose best fitness (mean of its last `eval_loop`) reaches it.
        n_step: learn from n-step transitions: those of `n_step_memory`, or of `memory` if it is a
            MultiStepReplayBuffer.
        per: prioritized sampling; `memory` must be a PrioritizedReplayBuffer.
        n_step_memory: n-step transitions aligned with the rows of `memory`; fill both through this function only.
            Rewards are summed when stored, with the memory's `gamma` and not an agent's.
        tournament, mutation: objects with `select` and `mutation`; without either, the population is not evolved.
        checkpoint: save all agents every `checkpoint` steps per member.
        checkpoint_path: file prefix; `<path>_<slot>_<steps>.pt`.
        overwrite_checkpoints: omit the steps from file names.
        save_elite: save the best agent at the end, at `elite_path`.
        wb: Weights & Biases tracking; without the package or the network, warns once and continues.
        verbose: progress bar and a line per generation; False prints nothing.
        accelerator: from Hugging Face's `accelerate`. Several processes train one population together: each has
            separate environments, a separate memory and its share of every batch, and gradients are averaged. Steps and
            `batch_size` are over all processes (docs/distributed.md). None is equivalent to one process.
        wandb_api_key, wandb_kwargs: for Weights & Biases.
        seed: run seed; None follows `torch.initial_seed()`. It is recorded and (verbose) printed.
        lockstep: members act at the same time on replicas of `env` (needs an environment of `make_vect_envs`).
        carry_envs: episodes continue across generations instead of being truncated. On resume they start anew, so a
            resumed run equals an uninterrupted one only statistically. Needs lockstep.
        learner: "auto", "fused" or "sequential".
        threads: of torch and of the kernels in C, on CPU. Torch's rounding depends on it, so that it must not change on
            resume. None: one for torch, which is fastest for small networks, and every core for the kernels.
        sinks: further receivers of the records.
        callbacks: user hooks, see `agilerl.train`.
        resume: folder that makes the run resumable. The whole run is saved there after every generation. If the folder
            holds a saved run, training continues from it as if never interrupted; `pop`, `memory`, `tournament` and
            `mutation` must be created as in the first call. A folder cannot hold two runs.

    Returns:
        (population, fitnesses), `fitnesses[generation][member]`.

    Raises:
        NotAvailableYetError: an argument that is not supported yet.
        AlgorithmError, ConfigError, ShapeError, EnvError: incompatible arguments.
        RankError: another process has ended or does not respond.
    """
    request = Request("train_off_policy", locals())
    return request.run(lambda options: OffPolicyCollector(env, memory, options, n_step_memory))
