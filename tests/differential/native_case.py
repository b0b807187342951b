"""Off-policy updates in torch and in C on the same populations and batches, and what both leave behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from agilerl.core.tree import map_leaves
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatches, UpdateResult
from agilerl.engine.rows.kernels import NATIVE, TORCH
from agilerl.engine.rows.native import NativeUpdates
from agilerl.native import library as native

FOUND = native.library()
BOTH = replace(NATIVE, whole=(torch.float32, torch.float64))
OBS = gym.spaces.Box(-1, 1, (5,))
Draw = Callable[..., Tensor]


def random_fields(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Generator, Draw, Draw]:
    """A generator, and functions that draw normal and uniform numbers [*shape, *size] from it."""
    draws = torch.Generator().manual_seed(7)

    def normal(*size: int) -> Tensor:
        return torch.randn(*shape, *size, generator=draws, dtype=torch.float64).to(dtype)

    def uniform(*size: int) -> Tensor:
        return torch.rand(*shape, *size, generator=draws, dtype=torch.float64).to(dtype)

    return draws, normal, uniform


def network_config(index: int, *, equal: bool, activation: str = "ReLU", norm: bool = False) -> dict[str, Any]:
    """Networks of member `index`: of hidden widths of its own, unless `equal`."""
    wider = 0 if equal else index
    return {
        "latent_dim": 12,
        "encoder_config": {"hidden_size": [20 + 13 * wider], "activation": activation},
        "head_config": {"hidden_size": [14 - 3 * wider], "activation": activation, "layer_norm": norm},
    }


def rates(index: int) -> dict[str, float]:
    """Learning rates and `tau` of member `index`."""
    return {"lr_actor": 1e-3 * (index + 1), "lr_critic": 2e-3 * (index + 1), "tau": 0.01 * (index + 1)}


def members(
    kind: Any, space: gym.Space, dtype: torch.dtype = torch.float64, *, equal: bool = False, **more: Any
) -> list[Any]:
    """Three agents with rates of their own; of hidden widths of their own, unless `equal`."""
    form = {name: more.pop(name) for name in ("activation", "norm") if name in more}
    optimizer = more.pop("optimizer", None)
    agents = []
    for index in range(3):
        config = network_config(index, equal=equal, **form)
        options = {name: value[index] if isinstance(value, tuple) else value for name, value in more.items()}
        agent = kind(OBS, space, index=index, seed=index, net_config=config, **rates(index), **options)
        for name in agent.registry.all_registered():
            getattr(agent, name).to(dtype)
        if optimizer is not None:
            for entry in agent.registry.optimizers:
                wrapper = entry.wrapper(agent)
                wrapper.optimizer_cls, wrapper.optimizer_kwargs = optimizer
        agent.reinit_optimizers()
        agents.append(agent)
    return agents


def cut(whole: TransitionBatches, start: int, stop: int, member: int | None = None) -> TransitionBatches:
    """The updates from `start` to `stop`, of one member or of all."""
    rows = slice(None) if member is None else slice(member, member + 1)
    part = lambda x: x[start:stop, rows]  # noqa: E731
    fields, noise = ({k: map_leaves(part, x) for k, x in each.items()} for each in (whole.fields, whole.noise))
    return TransitionBatches(fields, part(whole.weight), noise, stop - start, whole.number + start, True)


def state_of(learner: Learner, results: list[UpdateResult]) -> list[Tensor]:
    """Rows and steps of all networks, losses (NaN where the policy did not move) and priorities."""
    state = []
    for cohort in learner.groups[0].engine.cohorts:
        state += [x.clone() for x in (cohort.value, cohort.target, cohort.first, cohort.second, *cohort.step.values())]
    nothing = torch.full_like(results[0].loss, torch.nan)
    losses = [(result.loss, nothing if result.actor_loss is None else result.actor_loss) for result in results]
    return [*state, torch.stack([torch.stack(pair) for pair in losses]), torch.stack([r.priorities for r in results])]


def in_torch(agents: list[Any], given: TransitionBatches, live: Any = None) -> list[Tensor]:
    learner = Learner(agents, kernels=TORCH)
    assert len(learner.groups) == 1
    return state_of(learner, [learner.groups[0].learn(batch, live) for batch in given.each()])


def in_c(agents: list[Any], given: list[TransitionBatches], live: Any = None, library: Any = None) -> list[Tensor]:
    """As `in_torch`, one call for each of `given`."""
    learner = Learner(agents, kernels=BOTH)
    if library is not None:
        engine = learner.groups[0].engine
        engine._native = NativeUpdates(engine.cohorts, len(agents), BOTH.whole, engine.places())
        engine._native.library = library
    results = []
    for part in given:
        some = learner.groups[0].learn_whole(part, live)
        assert some is not None
        results += some
    return state_of(learner, results)


def assert_close(one: list[Tensor], other: list[Tensor], tolerance: float = 1e-10) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def assert_equal(one: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
