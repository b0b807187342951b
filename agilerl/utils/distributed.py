"""Published helpers for custom loops: collectives over several processes, and the start of a Weights & Biases run.

The training functions do not need them: they gather, broadcast and record by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from agilerl.core import foreign
from agilerl.core.redaction import without_secrets
from agilerl.errors import ConfigError

__all__ = ["aggregate_metrics_across_gpus", "consolidate_mutations", "gather_tensor", "init_wandb"]


def gather_tensor(tensor: Tensor | float, accelerator: Any) -> Tensor:
    """Gather a tensor or number of every process.

    Args:
        accelerator: of `accelerate`; None: one process.

    Returns:
        [P, *shape], in the order of the P processes; P = 1 without an accelerator.
    """
    local = torch.as_tensor(tensor) if accelerator is None else torch.as_tensor(tensor, device=accelerator.device)
    return local[None] if accelerator is None else torch.as_tensor(accelerator.gather(local[None]))


def aggregate_metrics_across_gpus(accelerator: foreign.Accelerator | None, metric_tensor: Tensor | float) -> float:
    """Mean of a metric over all processes, and over the entries of the tensor."""
    return float(gather_tensor(metric_tensor, accelerator).float().mean())


def consolidate_mutations(population: Sequence[Any]) -> None:
    """Broadcast the mutated hyperparameters of process 0 to all processes, in place.

    For custom loops in several processes that mutate independently: `mut` and everything in `registry.hp_config` become
    those of process 0. No-op with one process. Architectures are not sent: with the same seed in all processes
    `Mutations` changes them equally.
    """
    accelerator = population[0].accelerator if population else None
    if accelerator is None or accelerator.num_processes == 1:
        return
    from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]

    names = [list(agent.registry.hp_config.names()) for agent in population]
    states = [(a.mut, {n: getattr(a, n) for n in hp_names}) for a, hp_names in zip(population, names, strict=True)]
    for agent, (mut, values) in zip(population, broadcast_object_list(states, from_process=0), strict=True):
        agent.mut = mut
        for name, value in values.items():
            setattr(agent, name, value)


def init_wandb(
    algo: str,
    env_name: str,
    init_hyperparams: Mapping[str, Any] | None = None,
    mutation_hyperparams: Mapping[str, Any] | None = None,
    wandb_api_key: str | None = None,
    accelerator: Any = None,
    project: str = "AgileRL",
    addl_args: Mapping[str, Any] | None = None,
) -> None:
    """Log in to Weights & Biases and begin a run, in the main process only.

    The training functions do it with `wb=True`; call it for a custom loop, which then logs with `wandb.log`.

    Args:
        algo, env_name: in the run's name and configuration.
        init_hyperparams, mutation_hyperparams: stored with the run, without entries named like secrets.
        wandb_api_key: None uses the login of this machine.
        addl_args: further keywords of `wandb.init`, which take precedence.

    Raises:
        ConfigError: wandb is not installed.
    """
    try:
        import wandb
    except ImportError:
        raise ConfigError('wandb is not installed. fix: pip install "agilerl[wandb]"') from None
    if accelerator is None or accelerator.is_main_process:
        config = {
            "algo": f"Evo HPO {algo}",
            "env": env_name,
            **(init_hyperparams or {}),
            **(mutation_hyperparams or {}),
        }
        if wandb_api_key is not None:
            wandb.login(key=wandb_api_key)
        name = f"{env_name}-EvoHPO-{algo}-{time.strftime('%m%d%Y%H%M%S')}"
        wandb.init(**{"project": project, "name": name, "config": without_secrets(config), **(addl_args or {})})
    if accelerator is not None:
        accelerator.wait_for_everyone()
