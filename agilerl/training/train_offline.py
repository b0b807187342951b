"""Published offline training function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from agilerl.algorithms.base.single_agent import RLAlgorithm
from agilerl.algorithms.base.wrapped import unwrapped
from agilerl.collect.offline import OfflineCollector
from agilerl.core.options import OfflineOptions
from agilerl.data.dataset import read_dataset, read_minari
from agilerl.errors import AlgorithmError, ConfigError
from agilerl.telemetry.record import Sink
from agilerl.training.published import Request, check_learns_from, check_teams


def train_offline(
    env: Any,
    env_name: str,
    dataset: Any = None,
    algo: str | None = None,
    pop: list[Any] | None = None,
    memory: Any = None,
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
    minari_dataset_id: str | None = None,
    remote: bool = False,
    wandb_api_key: str | None = None,
    wandb_kwargs: dict[str, Any] | None = None,
    *,
    seed: int | None = None,
    learner: str = "auto",
    threads: int = 1,
    sinks: Sequence[Sink] = (),
    callbacks: Sequence[Any] = (),
    resume: str | os.PathLike[str] | None = None,
    fitness: Literal["returns", "fqe"] | None = None,
    held_out: float = 0.2,
    fqe_gamma: float = 0.99,
    fqe_updates: int = 3_000,
) -> tuple[list[Any], list[list[float]]]:
    """Train a population from a data set and evolve it; return the population and its fitnesses.

    A step is one gradient update of one member.

    Args:
        env: evaluation environment; never closed. None: `fitness` is "fqe", and spaces are those of the agents.
        dataset: see `agilerl.data.dataset.read_dataset`; None if `memory` already holds the data.
        minari_dataset_id: a Minari data set, instead of `dataset`. remote: download it if it is not available locally.
        memory: buffer for the data, replacing its contents; it grows if it is too small.
        max_steps: updates per member. evo_steps: updates per member between evaluations.
        fitness: "returns" of episodes in `env`, or "fqe": values by fitted Q evaluation on held-out episodes of the
            data; `env` is then not stepped. None: "returns" if there is an `env`.
        held_out: for "fqe", the fraction of held-out episodes. fqe_gamma: discount of the values. fqe_updates: per
            evaluation.
        others: see `agilerl.training.train_off_policy.train_off_policy`.

    Returns:
        (population, fitnesses), `fitnesses[generation][member]`.

    Raises:
        AlgorithmError, ConfigError, ShapeError: incompatible arguments.
    """
    if fitness is None:
        fitness = "fqe" if env is None else "returns"
    elif fitness == "returns" and env is None:
        raise ConfigError("fitness='returns' plays episodes, and env is None. fix: env=make_vect_envs(...), or 'fqe'.")
    request = Request("train_offline", dict(locals()))
    check_teams(request.population, env, are_teams=False)
    if not request.population:
        raise AlgorithmError("the population is empty. fix: create_population(algo='CQN', ..., population_size=4)")
    for agent in request.population:
        if not isinstance(unwrapped(agent), RLAlgorithm):
            raise AlgorithmError(
                f"train_offline fills a memory for agents of RLAlgorithm; got {type(agent).__name__}. "
                "fix: a subclass of agilerl.algorithms.core.RLAlgorithm, or a custom loop."
            )
    fix = "train_on_policy, or an offline algorithm: algo='CQN' for Discrete actions, algo='IQL' for Box actions"
    check_learns_from("a data set", request.population, fix)
    if memory is None:
        raise AlgorithmError("offline training needs a memory for the data. fix: ReplayBuffer(max_size=100_000)")
    if minari_dataset_id is not None and dataset is not None:
        raise ConfigError("dataset and minari_dataset_id are two data sets. fix: one of them.")
    request.check()
    options = request.options(OfflineOptions)
    data = None if dataset is None else read_dataset(dataset)
    if minari_dataset_id is not None:
        data = read_minari(minari_dataset_id, remote=remote)
    elif remote:
        raise ConfigError("remote=True downloads a data set of Minari, and none is named. fix: minari_dataset_id='..'.")
    return request.run(OfflineCollector(env, memory, options, data), options)
