"""Random mutations of whole agents, over all algorithms and kinds of spaces: whatever evolution does, these hold.

No exception, no number that is not finite, every limit kept, the optimisers' moments of what survived where they were,
and an agent that is what its `state()` says.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.core.tree import leaves
from agilerl.hpo.mutation import Mutations
from agilerl.modules.cnn import EvolvableCNN
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.multi_input import EvolvableMultiInput
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.observations import sample_batch
from agilerl.utils.utils import create_population

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (1, 8, 8), np.uint8)
NESTED = spaces.Dict(camera=IMAGE, rest=spaces.Tuple((spaces.Discrete(3), VECTOR)))
CHOICE, BOX = spaces.Discrete(3), spaces.Box(-2, 1, (2,), np.float32)
MLP: dict[str, Any] = {"hidden_size": [12], "min_mlp_nodes": 8, "max_mlp_nodes": 48}
CNN: dict[str, Any] = {"channel_size": [8], "kernel_size": [3], "stride_size": [1], "min_channel_size": 4,
                       "max_channel_size": 24}  # fmt: skip
ENCODERS = {
    "vector": (VECTOR, MLP),
    "image": (IMAGE, CNN),
    "nested": (NESTED, {"latent_dim": 16, "max_latent_dim": 48, "cnn_config": CNN, "mlp_config": MLP}),
    "discrete": (spaces.MultiDiscrete([2, 3]), MLP),
}
CASES = [
    ("DQN", "vector", CHOICE),
    ("DQN", "nested", CHOICE),
    ("RainbowDQN", "image", CHOICE),
    ("RainbowDQN", "discrete", CHOICE),
    ("QRDQN", "nested", CHOICE),
    ("SAC", "vector", BOX),
    ("SAC", "nested", CHOICE),
    ("TQC", "vector", BOX),
    ("TQC shared", "nested", BOX),
    ("TD3", "image", BOX),
    ("TD3", "nested", BOX),
    ("DDPG", "discrete", BOX),
    ("DDPG", "vector", BOX),
    ("DDPG shared", "image", BOX),
    ("TD3 shared", "vector", BOX),
    ("SAC shared", "nested", CHOICE),
    ("SAC shared", "vector", BOX),
]
LIMITS: dict[str, tuple[float, float]] = {"batch_size": (4, 16), "gamma": (0.8, 0.999)}
GROWTH = ("add_node", "add_channel", "add_latent_node")


def founder(algo: str, name: str, actions: gym.Space[Any]) -> Any:
    space, encoder = ENCODERS[name]
    algo, _, shared = algo.partition(" ")
    rate = "lr" if algo in ("DQN", "QRDQN", "RainbowDQN") else "lr_actor"
    config = HyperparameterConfig(**{rate: RLParameter(1e-4, 1e-2), "gamma": RLParameter(*LIMITS["gamma"]),
                                     "batch_size": RLParameter(4, 16, dtype=int)})  # fmt: skip
    net = {"encoder_config": encoder, "head_config": MLP, "latent_dim": 16, "max_latent_dim": 48}
    hp = {"BATCH_SIZE": 8, "LR": 1e-3, "LR_ACTOR": 1e-3, "NUM_ATOMS": 7, "POLICY_FREQ": 1,
          "SHARE_ENCODERS": bool(shared)}  # fmt: skip
    known = {k: v for k, v in hp.items() if k not in (("LR",) if rate == "lr_actor" else ("LR_ACTOR",))}
    (agent,) = create_population(algo, net, known, space, actions, config, seed=5)
    return agent


def learn(agent: Any, rng: np.random.Generator) -> None:
    count = int(agent.batch_size)
    obs, next_obs = (sample_batch(agent.observation_space, count, rng) for _ in range(2))
    is_box = isinstance(agent.action_space, spaces.Box)
    action = rng.uniform(-1, 1, (count, 2)).astype(np.float32) if is_box else rng.integers(3, size=count)
    agent.learn({"obs": obs, "action": action, "reward": rng.normal(size=count), "next_obs": next_obs,
                 "done": rng.random(count) < 0.2})  # fmt: skip


def moments(agent: Any) -> dict[tuple[str, str], Tensor]:
    """First moments by (network, parameter)."""
    found = {}
    for entry in agent.registry.optimizers:
        state = getattr(agent, entry.name).optimizer.state
        for network in entry.networks:
            for name, parameter in getattr(agent, network).named_parameters():
                if parameter in state:
                    found[network, name] = state[parameter]["exp_avg"].clone()
    return found


def check_moments(agent: Any, before: dict[tuple[str, str], Tensor], record: Any) -> None:
    after = moments(agent)
    for key, old in before.items():
        if key not in after:
            assert record.kind == "architecture" or record.path == "num_atoms"
            continue
        new = after[key]
        if record.kind != "architecture":
            assert torch.equal(new, old), f"{record.path} moved the moments of {key}"
            continue
        # Independent of how entries move: what is there now was there before, and growth loses none of it.
        kept, had = (Counter(x[x != 0].flatten().tolist()) for x in (new, old))
        assert not kept - had, f"{record.path} made up moments of {key}"
        if record.path.endswith(GROWTH):
            assert kept == had, f"{record.path} lost moments of {key}"


def check_limits(agent: Any) -> None:
    for name, (low, high) in LIMITS.items():
        assert low <= getattr(agent, name) <= high
    for network in agent.evaluation_networks().values():
        for module in network.evolvable_modules():
            if isinstance(module, EvolvableNetwork):
                assert module.min_latent_dim < module.latent_dim < module.max_latent_dim
            elif isinstance(module, EvolvableMLP) and module.hidden_size:
                assert module.min_hidden_layers <= len(module.hidden_size) <= module.max_hidden_layers
                assert all(module.min_mlp_nodes <= width <= module.max_mlp_nodes for width in module.hidden_size)
            elif isinstance(module, EvolvableCNN):
                assert all(module.min_channel_size <= c <= module.max_channel_size for c in module.channel_size)
            elif isinstance(module, EvolvableMultiInput):
                assert module.min_latent_dim <= module.latent_dim <= module.max_latent_dim


def check_sharing(agent: Any) -> None:
    """Every parameter has one optimiser at most; a network without an encoder reads the present one of its lender."""
    optimizers = [getattr(agent, entry.name) for entry in agent.registry.optimizers]
    moved = [id(p) for o in optimizers for group in o.optimizer.param_groups for p in group["params"]]
    assert len(set(moved)) == len(moved)
    networks = agent.evolvable_attributes(networks_only=True)
    assert set(moved) == {id(p) for network in networks.values() for p in network.parameters() if p.requires_grad}
    for name, encoder_source in agent.registry.encoder_sources.items():
        assert networks[name].encoder_source is networks[encoder_source]
        assert networks[name].latent_dim == networks[encoder_source].latent_dim
        assert not any(key.startswith("encoder") for key in networks[name].state_dict())


def check_finite(agent: Any, obs: Any) -> None:
    for network in agent.evolvable_attributes(networks_only=True).values():
        assert all(bool(torch.isfinite(p).all()) for p in network.parameters())
    assert all(bool(torch.isfinite(m).all()) for m in moments(agent).values())
    action = agent._greedy(obs)
    assert all(agent.action_space.contains(a if np.ndim(a) else int(a)) for a in action)


def flat(state: Any, path: str = "") -> dict[str, Any]:
    """Leaves of a state by path, tensors as lists."""
    if isinstance(state, dict):
        return {k: v for key, part in state.items() for k, v in flat(part, f"{path}/{key}").items()}
    if isinstance(state, list | tuple):
        return {k: v for i, part in enumerate(state) for k, v in flat(part, f"{path}/{i}").items()}
    return {path: state.tolist() if isinstance(state, Tensor | np.ndarray) else state}


def check_round_trip(agent: Any, obs: Any) -> None:
    state = agent.state()
    filed = {
        name: {**saved, "spec": json.loads(json.dumps(saved["spec"]))} for name, saved in state["networks"].items()
    }
    twin = type(agent)._blank(state, "cpu", None)
    twin.load_state({**state, "networks": filed})
    assert flat(twin.state()) == flat(state)
    np.testing.assert_array_equal(twin._greedy(obs), agent._greedy(obs))
    networks = [a.evolvable_attributes(networks_only=True).values() for a in (agent, twin)]
    mine, theirs = ({p.data_ptr() for n in part for p in n.parameters() if p.numel()} for part in networks)
    assert not mine & theirs, "a loaded agent shares storage with the state it came from"


def cycle(cases: list[tuple[str, str, Any]], cycles: int, seed: int) -> Counter[str]:
    """`cycles` mutations, in turn of an agent of every case; returns how often each path was taken."""
    rng = np.random.default_rng(seed)
    agents = [founder(*case) for case in cases]
    observed = [sample_batch(agent.observation_space, 4, rng) for agent in agents]
    for agent in agents:
        learn(agent, rng)
    paths: Counter[str] = Counter()
    for number in range(cycles):
        which = number % len(agents)
        agent = agents[which].clone(number)
        if rng.random() < 0.5:
            learn(agent, rng)
        before = moments(agent)
        assert before
        mutations = Mutations(0, 1, 0.3, 0.5, 0.3, 0.5, rand_seed=int(rng.integers(2**31)))
        (agent,) = mutations.mutation([agent])
        record = agent.mutation_record
        paths[record.path.split(".")[-1] or record.kind] += 1
        check_moments(agent, before, record)
        check_limits(agent)
        check_sharing(agent)
        check_finite(agent, observed[which])
        if number % 4 == 0:
            check_round_trip(agent, observed[which])
        agents[which] = agent
    return paths


@pytest.mark.thorough
@pytest.mark.parametrize("cycles", [84, pytest.param(200, marks=pytest.mark.slow)])
def test_mutations_of_agents_keep_every_invariant(cycles: int) -> None:
    paths = cycle(CASES, cycles, seed=1)
    assert {"add_node", "add_layer", "batch_size", "gamma", "normal"} <= set(paths), paths


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_five_thousand_mutations_of_agents_keep_every_invariant(case: tuple[str, str, Any]) -> None:
    cycle([case], 500, seed=2)


def test_the_observations_that_are_drawn_here_are_nested_as_their_space() -> None:
    drawn = sample_batch(NESTED, 5, np.random.default_rng(0))
    assert [len(leaf) for leaf in leaves(drawn)] == [5, 5, 5]
