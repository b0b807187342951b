"""Float64 populations of mixed shapes and hyperparameters, batches for them, and three ways to train on these."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch._dynamo  # an optimiser's first step imports it, and leaves its frames in cycles
from torch import Tensor

from agilerl.algorithms.core.single_agent import RLAlgorithm
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner, learner_of
from agilerl.engine.protocol import TransitionBatch

OBS = gym.spaces.Box(-np.inf, np.inf, (5,), np.float64)
BOX = gym.spaces.Box(np.array([-1.0, 0.0]), np.array([2.0, 5.0]), dtype=np.float64)
CHOICE = gym.spaces.Discrete(3)
SIZES = [16, 8, 12, 4]
WIDTHS = [(16, 24), (24, 8), (20, 20), (16, 24)]
UPDATES = 40


def net_config(member: int, latent: int = 12) -> dict[str, Any]:
    hidden, head = WIDTHS[member]
    return {
        "encoder_config": {"hidden_size": [hidden, hidden + 3 * member], "activation": "Tanh"},
        "head_config": {"hidden_size": [head], "activation": "Tanh"},
        "latent_dim": latent,
    }


def population(make: Callable[[int], RLAlgorithm]) -> list[Any]:
    """Four members made by `make(member)`, in float64, with targets away from their networks."""
    agents = []
    for i in range(len(SIZES)):
        agent = make(i)
        draw = torch.Generator().manual_seed(i)
        for name in sorted(agent.registry.all_registered()):
            network = getattr(agent, name).double()
            if "target" in name:
                with torch.no_grad():
                    for p in network.parameters():
                        p.add_(0.1 * torch.randn(p.shape, generator=draw).to(p))
        agents.append(agent)
    return agents


def batches(action_space: gym.Space, noise: tuple[str, ...] = (), discount: bool = False) -> list[TransitionBatch]:
    """`UPDATES` random batches [N, B_max]; rows beyond a member's own batch size have weight 0."""
    g = torch.Generator().manual_seed(7)
    n, b = len(SIZES), max(SIZES)
    weight = torch.zeros(n, b, dtype=torch.float64)
    for i, size in enumerate(SIZES):
        weight[i, :size] = 1 / size
    made = []
    for number in range(UPDATES):
        draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
        action = draw(n, b, 2).tanh() if isinstance(action_space, gym.spaces.Box) else draw(n, b).gt(0.5).long()
        made.append(
            TransitionBatch(
                draw(n, b, 5),
                action,
                draw(n, b),
                draw(n, b, 5),
                (torch.rand(n, b, generator=g) < 0.2).double(),
                weight,
                discount=torch.rand(n, b, generator=g).double() if discount else None,
                noise={name: draw(n, b, 2) for name in noise},
                number=number + 1,
            )
        )
    return made


def of_member(batch: TransitionBatch, member: int) -> TransitionBatch:
    """The rows of one member that count."""
    own = batch.map(lambda x: x[member])
    noise = {name: x[: SIZES[member]] if len(x) == max(SIZES) else x for name, x in own.noise.items()}
    return replace(own.map(lambda x: x[: SIZES[member]]), noise=noise)


def state(agents: list[Any]) -> dict[str, Tensor]:
    """Every parameter and every optimiser state of every member, by name."""
    found: dict[str, Tensor] = {}
    for i, agent in enumerate(agents):
        for name in sorted(agent.registry.all_registered()):
            parameters = [p.detach().flatten() for p in getattr(agent, name).parameters()]
            found[f"{i} {name}"] = torch.cat(parameters)
        for config in agent.registry.optimizers:
            for key, values in getattr(agent, config.name).state_dict()["state"].items():
                found |= {f"{i} {config.name} {key} {k}": v.double() for k, v in values.items()}
    return found


def assert_equal(one: list[Any], other: list[Any], tolerance: float = 1e-10) -> None:
    first, second = state(one), state(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(
            value, second[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@contextmanager
def no_tensors_in_cycles() -> Iterator[None]:
    """What updates inside leave behind is freed at once: no tensor waits for Python's collector of cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [tuple(x.shape) for x in gc.garbage if isinstance(x, Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left, f"{len(left)} tensors in cycles, of shapes {set(left)}"


def train_fused(agents: list[Any], made: list[TransitionBatch]) -> tuple[int, list[dict[int, Any]]]:
    """Train over rows; (number of groups, per update: member -> (loss, actor loss, priorities))."""
    learner = Learner(agents, choose(agents, "fused"))
    losses = []
    with no_tensors_in_cycles():
        for batch in made:
            seen = {}
            for g, group in enumerate(learner.groups):
                result = learner.learn(g, batch.map(lambda x, rows=group.members: x[rows]))
                for row, member in enumerate(group.members):
                    seen[member] = result.map(lambda x, row=row: x[row].clone())
            losses.append(seen)
    learner.release()
    return len(learner.groups), losses


def train_sequential(agents: list[Any], made: list[TransitionBatch]) -> None:
    learner = Learner(agents, choose(agents, "sequential"))
    with no_tensors_in_cycles():
        for batch in made:
            for member in range(len(agents)):
                learner.learn(member, batch.map(lambda x, m=member: x[[m]]))
    learner.release()


def train_alone(agents: list[Any], made: list[TransitionBatch]) -> None:
    with no_tensors_in_cycles():
        for member, agent in enumerate(agents):
            assert learner_of(agent).name == "fused", "an agent alone runs in its own row"
            for batch in made:
                agent.learn_batch(of_member(batch, member))


def critic_of(agent: Any, name: str) -> Any:
    """The critic as a function of observations (and actions); with a shared encoder written out.

    Then it is its head on the features of the policy's encoder, of the target policy's for a target where there is one,
    and no gradient goes from it into that encoder.
    """
    critic = getattr(agent, name)
    if not agent.share_encoders:
        return critic
    encoder_source = getattr(agent, "actor_target", agent.actor) if "target" in name else agent.actor

    def run(obs: Tensor, *action: Tensor) -> Tensor:
        return critic.head_net(torch.cat((encoder_source.encoder(obs).detach(), *action), -1))

    return run


def assert_all_paths_agree(
    agents: list[Any], made: list[TransitionBatch], reference: Callable[[Any, list[TransitionBatch]], None], groups: int
) -> list[dict[int, Any]]:
    """Fused == sequential == alone == `reference(agent, batches of its own)`, which trains an agent in place."""
    sequential, alone, plain = ([a.clone() for a in agents] for _ in range(3))
    before = state(agents)
    count, results = train_fused(agents, made)
    assert count == groups
    train_sequential(sequential, made)
    train_alone(alone, made)
    for member, agent in enumerate(plain):
        reference(agent, [of_member(batch, member) for batch in made])
    after = state(agents)
    assert all((before[name] - after[name]).abs().max() > 1e-4 for name in before if " " in name), "everything moves"
    assert_equal(agents, sequential)
    assert_equal(agents, alone)
    for i, agent in enumerate(agents):  # the reference has networks, and optimisers of its own
        for name in agent.registry.all_registered():
            got, expected = (torch.cat([p.detach().flatten() for p in getattr(a, name).parameters()])
                             for a in (agent, plain[i]))  # fmt: skip
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
    return results
