"""2,000 births of real agents by selection and mutation: whatever evolution does, these things hold."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.algorithms.dqn import DQN
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection

OBS, ACTIONS = gym.spaces.Box(-1, 1, (5,), np.float64), gym.spaces.Discrete(3)
LIMITS = {"lr": (1e-4, 1e-2), "batch_size": (8, 64), "learn_step": (1, 10)}
MEMBERS = 8
EXACT = ("encoder.add_node", "head_net.add_node", "head_net.add_layer", "add_latent_node")


def founders() -> list[DQN]:
    config = HyperparameterConfig(**{name: RLParameter(min=low, max=high) for name, (low, high) in LIMITS.items()})
    net = {
        "encoder_config": {"hidden_size": [16], "min_mlp_nodes": 8, "max_mlp_nodes": 80},
        "head_config": {"hidden_size": [16], "min_mlp_nodes": 8, "max_mlp_nodes": 80},
        "latent_dim": 24,
    }
    agents = [DQN(OBS, ACTIONS, i, config, net, batch_size=32, lr=1e-3, learn_step=4, seed=i) for i in range(MEMBERS)]
    for agent in agents:
        agent.actor.double()
        agent.actor_target.double()
    return agents


def learn(agent: DQN, rng: np.random.Generator) -> None:
    """One update from random transitions, so that there are moments to carry and observations to probe with."""
    draw = lambda *shape: torch.from_numpy(rng.normal(size=shape))  # noqa: E731
    count = int(agent.batch_size)
    action, done = torch.from_numpy(rng.integers(3, size=count)), torch.from_numpy(rng.random(count) < 0.1)
    agent.learn(
        {"obs": draw(count, 5), "action": action, "reward": draw(count), "next_obs": draw(count, 5), "done": done}
    )


def tensors(agent: DQN) -> list[Tensor]:
    """Parameters, targets and moments."""
    found = [p.data for net in (agent.actor, agent.actor_target) for p in net.parameters()]
    states = agent.optimizer.optimizer.state.values()
    return found + [v for state in states for k, v in state.items() if k != "step" and isinstance(v, Tensor)]


def moments(agent: DQN) -> dict[str, Tensor]:
    state = agent.optimizer.optimizer.state
    return {name: state[p]["exp_avg"] for name, p in agent.actor.named_parameters() if p in state}


@pytest.mark.parametrize(("generations", "seed"), [(25, 0), pytest.param(250, 0, marks=pytest.mark.slow)])
def test_hundreds_of_births_keep_every_invariant(generations: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    population = founders()
    tournament = TournamentSelection(3, True, MEMBERS, seed=seed)
    mutations = Mutations(0.1, 0.4, 0.3, 0.1, 0.1, 0.3, rand_seed=seed)
    probes = torch.from_numpy(rng.normal(size=(64, 5)))
    births, kinds = 0, {}
    for _ in range(generations):
        for agent in population:
            if rng.random() < 0.5 or not moments(agent):
                learn(agent, rng)
            agent.fitness.append(float(rng.normal()))
        parents = {agent.index: agent for agent in population}
        before = {i: {k: v.clone() for k, v in moments(a).items()} for i, a in parents.items()}
        with torch.no_grad():
            outputs = {i: a.actor(probes) for i, a in parents.items()}
        elite, chosen = tournament.select(population)
        population = mutations.mutation(chosen)
        births += len(population)
        owned = [t.untyped_storage().data_ptr() for a in (*parents.values(), elite, *population) for t in set_of(a)]
        assert len(owned) == len(set(owned)), "two members share storage"
        for agent, parent in zip(population, tournament.parents, strict=True):
            record = agent.mutation_record
            kinds[record.path or record.kind] = kinds.get(record.path or record.kind, 0) + 1
            check_bounds(agent)
            check_spec(agent)
            check_optimizer(agent)
            carried = moments(agent)
            for name, old in before[parent].items():
                if name in carried and carried[name].shape == old.shape and record.kind != "architecture":
                    assert torch.equal(carried[name], old), f"{record.path} changed the moments of {name}"
                if record.path in EXACT and name in carried:
                    block = tuple(slice(0, n) for n in old.shape)
                    assert torch.equal(carried[name][block], old), f"{record.path} lost moments of {name}"
                    rest = carried[name].clone()
                    rest[block] = 0
                    assert not rest.any(), "new entries start without momentum"
            if record.path in EXACT and agent.actor.activation == "ReLU":
                with torch.no_grad():
                    torch.testing.assert_close(agent.actor(probes), outputs[parent], rtol=1e-10, atol=1e-10)
            if record.kind in ("none", "rl_hp"):
                with torch.no_grad():
                    assert torch.equal(agent.actor(probes), outputs[parent])
    assert births == generations * MEMBERS
    assert {"lr", "batch_size", "learn_step", "encoder.add_node", "head_net.add_layer"} <= set(kinds), kinds


def set_of(agent: DQN) -> list[Tensor]:
    """One tensor per storage of the agent: a member alone keeps its parameters and moments in rows of its own."""
    return list({t.untyped_storage().data_ptr(): t for t in tensors(agent)}.values())


def check_bounds(agent: DQN) -> None:
    for name, (low, high) in LIMITS.items():
        value = getattr(agent, name)
        assert low <= value <= high
        assert isinstance(value, float if name == "lr" else int)
    actor = agent.actor
    assert 8 < actor.latent_dim < 128
    for part in (actor.encoder, actor.head_net):
        assert 1 <= len(part.hidden_size) <= 3
        assert all(8 <= width <= 80 for width in part.hidden_size)


def check_spec(agent: DQN) -> None:
    twin = type(agent.actor).from_spec(json.loads(json.dumps(agent.actor.spec())))
    assert {k: v.shape for k, v in twin.state_dict().items()} == {
        k: v.shape for k, v in agent.actor.state_dict().items()
    }


def check_optimizer(agent: DQN) -> None:
    optimizer = agent.optimizer.optimizer
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(p is q for p, q in zip(held, agent.actor.parameters(), strict=True))
    assert all(group["lr"] == agent.lr for group in optimizer.param_groups)
    for parameter, state in optimizer.state.items():
        assert state["exp_avg"].shape == parameter.shape == state["exp_avg_sq"].shape
    shapes = [p.shape for p in agent.actor.parameters()]
    assert [p.shape for p in agent.actor_target.parameters()] == shapes
