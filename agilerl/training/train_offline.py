"""Published offline training function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from agilerl.collect.offline import OfflineCollector
from agilerl.components.uniform import ReplayBuffer
from agilerl.core import foreign
from agilerl.core.arguments import checked
from agilerl.core.ranges import Count
from agilerl.data.dataset import read_dataset, read_minari
from agilerl.errors import ConfigError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.telemetry.record import Sink
from agilerl.training.published import Request, completed
from agilerl.training.train_off_policy import train_off_policy


@checked
@completed(train_off_policy)
def train_offline(
    env: foreign.Env | None, env_name: str, dataset: Any = None, algo: str | None = None, pop: list[Any] | None = None,
    memory: ReplayBuffer | None = None, INIT_HP: dict[str, Any] | None = None, MUT_P: dict[str, Any] | None = None,
    swap_channels: bool = False, max_steps: int = 1_000_000, evo_steps: int = 10_000, eval_steps: int | None = None,
    eval_loop: Count = 1, target: float | None = None, tournament: TournamentSelection | None = None,
    mutation: Mutations | None = None, checkpoint: int | None = None, checkpoint_path: str | None = None,
    overwrite_checkpoints: bool = False, save_elite: bool = False, elite_path: str | None = None, wb: bool = False,
    verbose: bool = True, accelerator: foreign.Accelerator | None = None, minari_dataset_id: str | None = None,
    remote: bool = False, wandb_api_key: str | None = None, wandb_kwargs: dict[str, Any] | None = None, *,
    seed: int | None = None, learner: str = "auto", threads: int | None = None, sinks: Sequence[Sink] = (),
    callbacks: Sequence[Any] = (), resume: str | os.PathLike[str] | None = None,
    fitness: Literal["returns", "fqe"] | None = None, held_out: float = 0.2, fqe_gamma: float = 0.99,
    fqe_updates: int = 3_000,
) -> tuple[list[Any], list[list[float]]]:  # fmt: skip
    """Train a population from a data set and evolve it; return the population and its fitnesses.

    A step is one gradient update of one member.

    Args:
        env: evaluation environment; never closed. None: `fitness` is "fqe", and spaces are those of the agents.
        dataset: see `agilerl.data.dataset.read_dataset`; None if `memory` already holds the data.
        minari_dataset_id: a Minari data set, instead of `dataset`.
        remote: download the Minari data set if it is not available locally.
        memory: buffer for the data, replacing its contents; it grows if it is too small.
        max_steps: updates per member.
        evo_steps: updates per member between evaluations.
        fitness: "returns" of episodes in `env`, or "fqe": values by fitted Q evaluation on held-out episodes of the
            data; `env` is then not stepped. None: "returns" if there is an `env`.
        held_out: for "fqe", the fraction of held-out episodes.
        fqe_gamma: for "fqe", the discount of the values.
        fqe_updates: for "fqe", updates per evaluation.
    """
    if fitness is None:
        fitness = "fqe" if env is None else "returns"
    elif fitness == "returns" and env is None:
        raise ConfigError("fitness='returns' plays episodes, and env is None. fix: env=make_vect_envs(...), or 'fqe'.")
    if minari_dataset_id is not None and dataset is not None:
        raise ConfigError("dataset and minari_dataset_id are two data sets. fix: one of them.")
    if remote and minari_dataset_id is None:
        raise ConfigError("remote=True downloads a data set of Minari, and none is named. fix: minari_dataset_id='..'.")
    request = Request("train_offline", locals())
    data = None if dataset is None else read_dataset(dataset)
    if minari_dataset_id is not None:
        data = read_minari(minari_dataset_id, remote=remote)
    return request.run(lambda options: OfflineCollector(env, memory, options, data))
