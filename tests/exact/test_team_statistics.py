"""Running statistics of observations by group of agents: by hand, in copies and files, and in exported policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import save_file

from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO, OF_STATE
from agilerl.algorithms.ppo import PPO
from agilerl.envs.protocol import AGENTS, PRESENT, STATE
from agilerl.errors import ConfigError
from agilerl.telemetry.files import jsonable
from agilerl.views.export import sample_observations
from agilerl.views.standalone.policy import load

BOX, PAIR, IMAGE = spaces.Box(-9, 9, (1,)), spaces.Box(-9, 9, (2,)), spaces.Box(0, 255, (3, 16, 16), np.uint8)
OBS, ACTIONS = {"a_0": BOX, "a_1": BOX, "solo": PAIR}, dict.fromkeys(("a_0", "a_1", "solo"), spaces.Discrete(2))
NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
ARGUMENTS: dict[str, Any] = {"net_config": NET, "seed": 1, "normalize_observations": True, "batch_size": 2}
SEEN: dict[str, Any] = {"a_0": [[1.0], [3.0]], "a_1": [[0.0], [8.0]], "solo": [[2.0, 5.0], [4.0, 5.0]]}
PRESENCE = [[1, 0, 1], [1, 1, 1]]  # a_1 is absent in the first step
BY_HAND = {"a": (4.0, 26 / 3, 3), "solo": ([3.0, 5.0], [1.0, 0.0], 2)}  # rows 1, 3, 8 of the group "a"


def rows(step: int) -> dict[str, Any]:
    agents = {agent: np.array(values[step : step + 1], np.float32) for agent, values in SEEN.items()}
    return {AGENTS: agents, PRESENT: np.array(PRESENCE[step : step + 1], np.int8)}


def buffer(team: Any, **more: Any) -> Any:
    store = team.make_buffer(2, 1)
    for step in range(2):
        never, number = np.zeros((1, 3), bool), np.zeros((1, 3), np.float32)
        obs = rows(step) | {name: value[step : step + 1] for name, value in more.items()}
        valid = np.array(PRESENCE[step : step + 1], bool)
        store.add(obs, number, number + step, never, never, number - 0.7, valid=valid)
    store.last_obs = obs
    return store


def learned(kind: Any, **more: Any) -> Any:
    team = kind(OBS, ACTIONS, **ARGUMENTS, **more)
    team.learn_buffer(buffer(team))
    return team


def excite(team: Any) -> Any:
    draw = np.random.default_rng(4)
    for group in team.grouped_agents:
        for parameter in team.actors[group].parameters():  # so that actions differ
            parameter.data = torch.from_numpy(draw.normal(size=parameter.shape) * 0.7).float()
    return team


@pytest.mark.parametrize("kind", [IPPO, MAPPO])
def test_statistics_are_of_the_present_agents_of_each_group(kind: Any) -> None:
    statistics = learned(kind).observation_statistics
    assert statistics.count == 5
    for group, (mean, var, count) in BY_HAND.items():
        np.testing.assert_allclose(statistics[group]["mean"], np.ravel(mean))
        np.testing.assert_allclose(statistics[group]["var"], np.ravel(var))
        assert statistics[group]["count"] == count


def test_a_policy_and_the_value_of_all_agents_read_each_part_by_the_statistics_of_its_group() -> None:
    team = learned(MAPPO)
    scaled = team.actors["a"].preprocess(np.array([[7.0]], np.float32))
    assert scaled.item() == pytest.approx(3 / np.sqrt(26 / 3), rel=1e-5)
    obs = {"a_0": [[7.0]], "a_1": [[0.0]], "solo": [[5.0, 5.0]]}  # zeros of an absent agent stay zeros
    for critic in team.critics.values():
        parts = critic.preprocess({agent: np.array(x, np.float32) for agent, x in obs.items()})
        assert parts["a_0"].item() == pytest.approx(3 / np.sqrt(26 / 3), rel=1e-5)
        assert parts["a_1"].item() == 0
        np.testing.assert_allclose(parts["solo"], [[2.0, 0.0]], rtol=1e-5)


def test_a_value_of_the_state_has_the_statistics_of_the_state() -> None:
    team = MAPPO(OBS, ACTIONS, **ARGUMENTS, state_space=PAIR)
    team.learn_buffer(buffer(team, **{STATE: np.array([[0.0, 2.0], [4.0, 2.0]], np.float32)}))
    state = team.observation_statistics[OF_STATE]
    assert (state["mean"].tolist(), state["var"].tolist(), state["count"]) == ([2.0, 2.0], [4.0, 0.0], 2)
    np.testing.assert_allclose(team.critics["a"].get_buffer("obs_mean"), [2, 2])
    np.testing.assert_allclose(team.critics["solo"].get_buffer("obs_scale")[0], 0.5)


@pytest.mark.parametrize("kind", [IPPO, MAPPO])
def test_copies_files_mutants_and_members_over_rows_read_by_the_same_statistics(kind: Any, tmp_path: Path) -> None:
    team = learned(kind)
    team.save_checkpoint(tmp_path / "team.pt")
    other = kind(OBS, ACTIONS, **(ARGUMENTS | {"seed": 9}))
    other.load_checkpoint(tmp_path / "team.pt")
    mutant = team.clone(3)
    for network in mutant.evaluation_networks().values():
        network.apply_mutation("add_latent_node")
    obs = {agent: sample_observations(space, 20, 7) for agent, space in OBS.items()}
    expected = team.get_action(obs, training=False)
    for twin, atol in ((other, 0.0), (kind.load(tmp_path / "team.pt"), 0.0), (team.clone(2), 0.0), (mutant, 1e-5)):
        assert twin.observation_statistics.count == 5
        for mine, theirs in zip(expected[1:], twin.get_action(obs, training=False)[1:], strict=True):
            for agent in OBS:
                np.testing.assert_allclose(mine[agent], theirs[agent], rtol=0, atol=atol)


@pytest.mark.parametrize("kind", [IPPO, MAPPO])
def test_an_exported_policy_acts_by_the_statistics_of_its_group(kind: Any, tmp_path: Path) -> None:
    team = excite(learned(kind))
    (tmp_path / "policy.json").write_text(json.dumps(jsonable(team.policy_spec())))
    save_file({f"policy.{k}": v for k, v in team.policy_state().items()}, tmp_path / "policy.safetensors")
    obs = {agent: sample_observations(space, 300, 7) for agent, space in OBS.items()}
    exported, expected = load(tmp_path).act(obs), team.get_action(obs, training=False)[0]
    loaded = kind.from_policy(team.policy_spec(), team.policy_state())
    again = loaded.get_action(obs, training=False)[0]
    for agent in OBS:
        np.testing.assert_array_equal(exported[agent], expected[agent])
        np.testing.assert_array_equal(again[agent], expected[agent])
    assert len(np.unique(expected["a_0"])) == 2
    critic = loaded.critics["a"]  # untrained, and reads like the loaded policies
    mean = {IPPO: [4.0], MAPPO: [4.0, 4.0, 3.0, 5.0]}[kind]
    np.testing.assert_allclose(critic.get_buffer("obs_mean"), mean)


@pytest.mark.parametrize("kind", [IPPO, MAPPO])
def test_groups_without_vectors_are_read_as_before(kind: Any) -> None:
    observed = OBS | {"solo": IMAGE}
    arguments = ARGUMENTS | {"net_config": None}
    team = kind(observed, ACTIONS, **arguments)
    obs = {agent: sample_observations(space, 4, 3) for agent, space in observed.items()}
    stored = {AGENTS: {a: x[None] for a, x in obs.items()}, PRESENT: np.ones((1, 4, 3), np.int8)}
    statistics = team.observation_statistics.running()
    statistics.add([team.encoder_inputs(stored)])
    team.take_statistics(statistics)
    assert list(team.observation_statistics) == ["a"]
    parts = team.critics["solo"].preprocess(obs if kind is MAPPO else obs["solo"])
    image = parts["solo"] if kind is MAPPO else parts
    np.testing.assert_allclose(image, obs["solo"] / 255, rtol=1e-6)
    with pytest.raises(ConfigError, match="normalize_observations is for observations that are read as vectors"):
        kind({"solo": IMAGE}, {"solo": spaces.Discrete(2)}, **arguments)


def test_an_agent_reads_the_vectors_of_a_dict_by_their_statistics() -> None:
    space = spaces.Dict({"at": PAIR, "view": IMAGE})
    agent = PPO(space, spaces.Discrete(2), **(ARGUMENTS | {"net_config": None}))
    obs = sample_observations(space, 3, 1) | {"at": np.array([[1, 5], [3, 5], [8, 5]], np.float32)}
    statistics = agent.observation_statistics.running()
    statistics.add([agent.encoder_inputs(obs)])
    agent.take_statistics(statistics)
    np.testing.assert_allclose(agent.observation_statistics["mean"], [4, 5])
    for network in (agent.actor, agent.critic):
        parts = network.preprocess(obs)
        np.testing.assert_allclose(parts["at"][:, 0], (np.array([1, 3, 8]) - 4) / np.sqrt(26 / 3), rtol=1e-5)
        np.testing.assert_allclose(parts["view"], obs["view"] / 255, rtol=1e-6)
