"""Policies of teams as files: Dict observations with dense keys in their configuration, one policy a group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_files import alone

from agilerl.algorithms import MADDPG, MATD3
from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO
from agilerl.views.export import export_team, sample_observations

SCOUT = spaces.Dict(
    {
        "at": spaces.Box(-1, 1, (2,)),
        "card": spaces.Discrete(3, start=1),
        "view": spaces.Box(0, 255, (3, 8, 8), np.uint8),
        "found": spaces.Tuple([spaces.MultiBinary(2), spaces.Box(-1, 1, (1,))]),
    }
)
OBSERVED = {"scout_0": SCOUT, "scout_1": SCOUT, "base_0": spaces.Box(-1, 1, (3,))}
ACTED = {"scout_0": spaces.Discrete(4), "scout_1": spaces.Discrete(4), "base_0": spaces.Box(-2, 2, (2,))}
NET = {"encoder_config": {"hidden_size": [12]}, "head_config": {"hidden_size": [8]}, "latent_dim": 6}


def team(cls: Any = MADDPG, **options: Any) -> Any:
    made = cls(OBSERVED, ACTED, net_config=NET, seed=4, **options)
    draw = np.random.default_rng(2)
    for group in made.grouped_agents:
        for parameter in getattr(made, f"actors.{group}").parameters():  # so that actions differ
            parameter.data = torch.from_numpy(draw.normal(size=parameter.shape) * 0.7).float()
    made.set_training_mode(False)
    return made


def test_the_plain_policy_of_a_team_reads_parts_that_one_network_joins(tmp_path: Path) -> None:
    made = team()
    assert getattr(made, "actors.scout").encoder.vector_keys == ["at", "card"]
    obs: dict[str, Any] = {agent: sample_observations(space, 300, 7) for agent, space in OBSERVED.items()}
    obs["scout_1"] = sample_observations(SCOUT, 300, 8)
    found, (expected, _) = alone(made, tmp_path).act(obs), made.get_action(obs, training=False)
    for agent in OBSERVED:
        np.testing.assert_allclose(found[agent].numpy(), expected[agent], atol=1e-5)
        assert len(np.unique(expected[agent].reshape(300, -1), axis=0)) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "options"), [(MADDPG, {}), (IPPO, {"share_encoders": True})])
def test_onnx_of_a_group_has_an_input_for_each_part(cls: Any, options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    reports = export_team(team(cls, **options), tmp_path / "policy.onnx", rows=400)
    assert set(reports) == {"scout", "base"}
    assert reports["scout"].different_actions == 0
    assert reports["base"].largest_difference < 1e-4
    assert {p.name for p in tmp_path.iterdir()} == {"policy.scout.onnx", "policy.base.onnx"}


KINDS: dict[str, Any] = {
    "box_0": spaces.Box(-1, 1, (3,)),
    "discrete_0": spaces.Discrete(3, start=2),
    "numbers_0": spaces.MultiDiscrete([2, 3], start=[0, 1]),
    "bits_0": spaces.MultiBinary(3),
    "dict_0": SCOUT,
    "tuple_0": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)]),
    "image_0": spaces.Box(0, 255, (4, 4, 2), np.uint8),
}
DONE: list[Any] = [
    spaces.Discrete(4, start=1), spaces.MultiDiscrete([2, 3], start=[0, 1]), spaces.Box(-2, 3, (2,)),
    spaces.MultiBinary(2),
]  # fmt: skip


@pytest.mark.parametrize("has_masks", [True, False])
@pytest.mark.parametrize(
    ("cls", "kinds", "options"),
    [(MADDPG, 3, {}), (MATD3, 3, {}), (IPPO, 4, {}), (IPPO, 4, {"share_encoders": True}), (MAPPO, 4, {})],
)
def test_a_file_of_every_pair_of_kinds_acts_as_its_team(
    cls: Any, kinds: int, options: dict[str, Any], has_masks: bool, tmp_path: Path
) -> None:
    draw = np.random.default_rng(1)
    for shift in range(kinds):
        acted = {a: DONE[(k + shift) % kinds] for k, a in enumerate(KINDS)}
        made = cls(KINDS, acted, net_config=NET, seed=4, **options)
        for group in made.grouped_agents:
            for parameter in getattr(made, f"actors.{group}").parameters():
                parameter.data = torch.from_numpy(draw.normal(size=parameter.shape) * 0.5).float()
        obs = {a: sample_observations(space, 60, shift + k) for k, (a, space) in enumerate(KINDS.items())}
        masks = {}
        for agent, space in acted.items() if has_masks else ():
            sizes = [space.n] if isinstance(space, spaces.Discrete) else getattr(space, "nvec", ())
            parts = [draw.random((60, n)) < 0.5 for n in sizes]
            for part in parts:
                part[np.arange(60), draw.integers(0, part.shape[1], 60)] = True
            masks |= {agent: np.concatenate(parts, 1)} if parts else {}
        made.set_training_mode(False)
        expected = made.get_action(obs, {a: {"action_mask": m} for a, m in masks.items()}, training=False)[0]
        found = alone(made, tmp_path).act(obs, masks)
        for agent in KINDS:
            np.testing.assert_allclose(found[agent].numpy(), expected[agent], atol=1e-5, err_msg=f"{agent} {shift}")
