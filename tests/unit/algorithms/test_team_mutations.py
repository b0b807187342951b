"""Mutations of teams: drawn for one policy, carried to targets and critics, and nothing that was learned is lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import MADDPG, MATD3
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.engine.protocol import TransitionBatch
from agilerl.hpo.mutation import Mutations

OBS = {"a_0": spaces.Box(-1, 1, (3,)), "a_1": spaces.Box(-1, 1, (3,)), "b_0": spaces.Box(-1, 1, (5,))}
ACTIONS = {"a_0": spaces.Discrete(3), "a_1": spaces.Discrete(3), "b_0": spaces.Box(-1, 1, (2,))}
NET = {"encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}, "latent_dim": 16}
BOTH = pytest.mark.parametrize("cls", [MADDPG, MATD3])
KINDS = ("no_mutation", "architecture", "new_layer_prob", "parameters", "activation", "rl_hp")


def trained(cls: Any, updates: int = 4) -> Any:
    limits = HyperparameterConfig(lr_actor=RLParameter(1e-4, 1e-2), gamma=RLParameter(0.9, 0.999))
    team = cls(OBS, ACTIONS, net_config=NET, seed=1, hp_config=limits)
    for name in team.registry.all_registered():
        getattr(team, name).double()
    draw = torch.Generator().manual_seed(3)
    for number in range(1, updates + 1):
        action = torch.cat([torch.randint(3, (16, 2), generator=draw), torch.rand(16, 2, generator=draw)], -1)
        team.learn_batch(
            TransitionBatch(
                observations(draw), action.double(), torch.rand(16, 3, generator=draw).double(), observations(draw),
                torch.zeros(16, 3).double(), torch.full((16,), 1 / 16).double(),
                noise={k: torch.rand(16, 8, generator=draw).double() for k in ("gumbel", "smoothing")}, number=number,
            )
        )  # fmt: skip
    return team


def observations(draw: torch.Generator, count: int = 16) -> dict[str, Any]:
    seen = {a: 2 * torch.rand(count, *space.shape, generator=draw).double() - 1 for a, space in OBS.items()}
    return {"agents": seen, "present": torch.ones(count, 3)}


def only(kind: str, seed: int = 0, **more: Any) -> Mutations:
    return Mutations(**{name: float(name == kind) for name in KINDS} | more, rand_seed=seed)


def outputs(team: Any) -> dict[str, torch.Tensor]:
    """Of every evaluation network and target on the observations that the team has seen last."""
    obs, found = team.probe_observations(), {}
    action = torch.zeros(16, 10).double()  # eight features, and which of two agents is asked for
    for name in sorted(team.registry.all_registered()):
        network, group = getattr(team, name), name.partition(".")[2]
        with torch.no_grad():
            if "actor" in name:
                found[name] = network(obs["agents"]["a_0" if group == "a" else "b_0"])
            else:
                found[name] = network(obs["agents"], action[:, : 8 + 2 * (group == "a")])
    return found


def grown(team: Any, seeds: int = 60) -> tuple[Any, Any]:
    """The first mutation of the seeds that adds units to a layer, with its record."""
    for seed in range(seeds):
        twin = team.clone(index=seed)
        mutation = only("architecture", seed, new_layer_prob=0.0)
        mutation.mutation([twin])
        if mutation.last_births[0].path.endswith("encoder.add_node"):
            return twin, mutation.last_births[0]
    raise AssertionError("no seed adds units")


@BOTH
def test_growth_names_the_policy_and_leaves_every_function_as_it_was(cls: Any) -> None:
    team = trained(cls)
    before, (twin, record) = outputs(team), grown(team)
    group = record.path.split(".")[1]
    assert record.kind == "architecture"
    assert record.path == f"actors.{group}.encoder.add_node"
    assert twin.mut == "encoder.add_node"
    assert record.before == getattr(team, f"actors.{group}").describe()
    assert record.after == getattr(twin, f"actors.{group}").describe() != record.before
    for name, value in outputs(twin).items():
        torch.testing.assert_close(value, before[name], rtol=1e-6, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@BOTH
def test_targets_and_critics_follow_the_policy(cls: Any) -> None:
    team = trained(cls)
    twin, record = grown(team)
    group = record.path.split(".")[1]
    kinds = ("critics_1", "critics_2") if cls is MATD3 else ("critics",)
    for name in (f"actors.{group}", *(f"{kind}.{group}" for kind in kinds)):
        size = sum(p.numel() for p in getattr(team, name).parameters())
        assert sum(p.numel() for p in getattr(twin, name).parameters()) > size, name
    for pair in twin.registry.groups:
        (shadow,) = pair.shared_networks
        target = getattr(twin, shadow)
        assert target.describe() == getattr(twin, pair.eval_network).describe()
        assert not any(p.requires_grad for p in target.parameters())


@BOTH
def test_moments_of_what_was_there_are_kept(cls: Any) -> None:
    team = trained(cls)
    twin, record = grown(team)
    group = record.path.split(".")[1]
    for config in twin.registry.optimizers:
        old, new = (getattr(agent, config.name).optimizer for agent in (team, twin))
        for mine, theirs in zip(new.param_groups[0]["params"], old.param_groups[0]["params"], strict=True):
            kept = old.state[theirs]["exp_avg_sq"]
            block = tuple(slice(0, n) for n in kept.shape)
            assert torch.equal(new.state[mine]["exp_avg_sq"][block], kept) or group in config.name, config.name
            assert new.state[mine]["step"] == old.state[theirs]["step"]
    assert getattr(twin, f"actor_optimizers.{group}").networks[0] is getattr(twin, f"actors.{group}")


@BOTH
def test_noise_reaches_policies_and_a_mutated_team_learns_on(cls: Any) -> None:
    team = trained(cls)
    before = outputs(team)
    only("parameters").mutation([team])
    assert team.mut == "param"
    changed = {n for n, value in outputs(team).items() if not torch.equal(value, before[n])}
    assert {"actors.a", "actors.b"} & changed
    assert not {name for name in changed if name.startswith("critic")}
    for kind in ("architecture", "activation", "rl_hp"):
        only(kind, 5, new_layer_prob=0.5).mutation([team])
        assert team.mut != "None"
    result = team.learn_batch(
        TransitionBatch(
            observations(torch.Generator().manual_seed(1)), torch.zeros(16, 4).double(), torch.ones(16, 3).double(),
            observations(torch.Generator().manual_seed(2)), torch.zeros(16, 3).double(),
            torch.full((16,), 1 / 16).double(),
            noise={k: torch.zeros(16, 8).double() for k in ("gumbel", "smoothing")}, number=2,
        )
    )  # fmt: skip
    assert torch.isfinite(result.loss)


def test_a_learning_rate_reaches_the_optimisers_of_all_groups() -> None:
    team = trained(MADDPG)
    for seed in range(20):
        only("rl_hp", seed).mutation([team])
        if team.mut == "lr_actor":
            break
    assert team.mut == "lr_actor"
    rates = {getattr(team, f"actor_optimizers.{g}").optimizer.param_groups[0]["lr"] for g in ("a", "b")}
    assert rates == {team.lr_actor} != {1e-3}
    assert getattr(team, "critic_optimizers.a").optimizer.param_groups[0]["lr"] == team.lr_critic


@BOTH
def test_critics_are_probed_with_the_actions_of_all_who_are_there_and_with_who_asks(cls: Any) -> None:
    """Choices 2 and 0 are one-hot, components as they are; the second agent of the second row is absent."""
    team = cls(OBS, ACTIONS, net_config=NET, seed=1)
    seen = observations(torch.Generator().manual_seed(0), 2)
    seen["present"] = torch.tensor([[1, 1, 1], [1, 0, 1]])
    team.remember_observations(seen, torch.tensor([[2.0, 0.0, 0.5, -0.5], [1.0, 0.0, 0.0, 1.0]]))
    taken = [[0, 0, 1, 1, 0, 0, 0.5, -0.5], [0, 1, 0, 0, 0, 0, 0, 1]]
    kind = "critics_1" if cls is MATD3 else "critics"
    assert team.probe_actions(f"{kind}.b").tolist() == [taken]
    asked = team.probe_actions(f"{kind}.a").tolist()
    assert asked == [[[*row, 1, 0] for row in taken], [[*row, 0, 1] for row in taken]]
    team.remember_observations(seen)
    assert team.probe_actions(f"{kind}.a") is None
