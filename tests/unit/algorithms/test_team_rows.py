"""Short cuts of teams in what runs in every step give what the longer ways give, bit by bit."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import MADDPG
from agilerl.algorithms.teams.actions import TeamActions
from agilerl.collect.acting import _by_member
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.uniform import ReplayBuffer
from agilerl.core import tree
from agilerl.engine.protocol import _unbound
from agilerl.envs.protocol import AGENTS, JOINT, PRESENT
from agilerl.modules.paths import resolve

IDS, WIDTHS = ("walker_1", "walker_0", "seer_0"), (3, 3, 5)
ACTED = {
    "walker_1": spaces.MultiDiscrete([2, 3]),
    "walker_0": spaces.MultiDiscrete([2, 3]),
    "seer_0": spaces.Box(-1, 2, (2,)),
}


def team(scale_observations: bool = False, **seen: spaces.Space[Any]) -> MADDPG:
    """A team of agents that see vectors, where nothing else is `seen`."""
    vectors = {agent: spaces.Box(-1, 1, (width,)) for agent, width in zip(IDS, WIDTHS, strict=True)}
    config = {"latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}
    return MADDPG(
        {**vectors, **seen}, ACTED, list(IDS), seed=0, net_config={**config, "scale_observations": scale_observations}
    )


def observed(rng: np.random.Generator, *lead: int) -> dict[str, Any]:
    """Rows of all agents [*lead, ...], float32, beside one another in memory as replay keeps them."""
    whole = rng.standard_normal((*lead, sum(WIDTHS))).astype(np.float32)
    ends = np.cumsum(WIDTHS)[:-1]
    rows = dict(zip(IDS, np.split(whole, ends, -1), strict=True))
    return {AGENTS: {agent: rows[agent] for agent in sorted(rows)}, PRESENT: np.ones((*lead, len(IDS)), np.int8)}


def assert_read_one_by_one(agent: MADDPG, obs: Any, found: Any) -> None:
    """What a team's row input gives is what its networks' own give, and lies in memory as theirs does."""
    for name in IDS:
        expected = resolve(agent, f"actors.{agent.get_group_id(name)}").row_input(obs[AGENTS][name])
        assert torch.equal(found[AGENTS][name], expected)
        assert found[AGENTS][name].dtype == expected.dtype
    expected = agent.joint_network().row_input(obs[AGENTS])
    assert torch.equal(found[JOINT], expected)
    assert (found[JOINT].dtype, found[JOINT].stride()) == (expected.dtype, expected.stride())


@pytest.mark.parametrize("as_tensors", [False, True])
@pytest.mark.parametrize("kind", ["plain", "scaled", "choices"])
def test_networks_over_rows_read_what_they_would_read_one_by_one(kind: str, as_tensors: bool) -> None:
    rng = np.random.default_rng(0)
    obs = observed(rng, 2, 4)
    if kind == "choices":
        agent = team(seer_0=spaces.Discrete(5))
        obs[AGENTS]["seer_0"] = rng.integers(0, 5, (2, 4))
    else:
        agent = team(scale_observations=kind == "scaled")
    obs = tree.map_leaves(torch.from_numpy, obs) if as_tensors else obs
    assert_read_one_by_one(agent, obs, agent.row_input(obs))


def test_numbers_of_other_kinds_and_statistics_that_come_later_are_read_as_ever() -> None:
    agent, obs = team(), observed(np.random.default_rng(1), 2, 4)
    read = agent.row_input
    whole = {**obs, AGENTS: {name: np.rint(x * 3).astype(np.int64) for name, x in obs[AGENTS].items()}}
    assert_read_one_by_one(agent, whole, read(whole))
    wide = {**obs, AGENTS: {name: x.astype(np.float64) for name, x in obs[AGENTS].items()}}
    assert_read_one_by_one(agent, wide, read(wide))
    actor: Any = agent.actors["seer"]
    actor.normalize_observations = True
    actor.set_observation_statistics(np.full(5, 0.5), np.full(5, 4.0))
    found = read(obs)
    assert_read_one_by_one(agent, obs, found)
    assert not torch.equal(found[AGENTS]["seer_0"], torch.from_numpy(obs[AGENTS]["seer_0"]))


def test_observations_of_another_width_are_an_error_as_ever() -> None:
    agent, obs = team(), observed(np.random.default_rng(1), 2, 4)
    obs[AGENTS]["seer_0"] = obs[AGENTS]["seer_0"][..., :4]
    with pytest.raises(Exception, match="was built for"):
        agent.row_input(obs)


def steps(rng: np.random.Generator, is_nested: bool) -> list[tuple[Any, ...]]:
    """Vector steps of 4 lanes; an agent's observation may be a dict or a tuple itself."""

    def seen() -> dict[str, Any]:
        obs = observed(rng, 4)
        if is_nested:
            image = rng.integers(0, 255, (4, 2, 2), dtype=np.uint8)
            obs[AGENTS]["seer_0"] = {"at": obs[AGENTS]["seer_0"], "more": (image, rng.integers(0, 3, 4))}
        return obs

    return [
        (seen(), rng.random((4, 6), np.float32), rng.standard_normal((4, 3)), seen(), rng.random((4, 3)) < 0.3)
        for _ in range(3)
    ]


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("is_masked", [False, True])
def test_the_memory_of_teams_keeps_and_gives_what_any_memory_would(is_nested: bool, is_masked: bool) -> None:
    mine, plain = MultiAgentReplayBuffer(8, agent_ids=IDS, seed=0), ReplayBuffer(8, seed=0)
    rng, legal = np.random.default_rng(2), np.array([[1, 1, 1, 0, 1]] * 4, bool)
    for number, step in enumerate(steps(rng, is_nested)):
        mask = rng.random(4) < 0.7
        masks = {"next_mask": legal, "obs_mask": legal} if is_masked and number != 1 else {}
        for memory in (mine, plain):
            memory.write(*step, mask, **masks)
    assert (mine.counter, mine.fields) == (plain.counter, plain.fields)
    index = np.arange(len(plain))[None]
    found, expected = mine.gather(index), plain.gather(index)
    assert tree.map_leaves(lambda x: (x.dtype, x.shape), found) == tree.map_leaves(
        lambda x: (x.dtype, x.shape), expected
    )
    assert all(tree.leaves(tree.map_leaves(torch.equal, found, expected)))


def test_trees_are_split_as_any_tree_is() -> None:
    rng = np.random.default_rng(3)
    for nested in (False, True):
        obs = steps(rng, nested)[0][0]
        assert str(_by_member(obs, (2, 2))) == str(tree.reshape(obs, 2, 2))
        rows = tree.map_leaves(torch.from_numpy, obs)
        assert str(_unbound(rows, 4)) == str(tree.unbind(rows))
    assert str(_by_member((obs,), (2, 2))) == str(tree.reshape((obs,), 2, 2))
    assert str(_unbound((rows,), 4)) == str(tree.unbind((rows,)))


def test_what_is_worked_out_of_a_teams_actions_is_in_no_copy() -> None:
    actions = TeamActions.of(ACTED, "team", sampled=False)
    assert (actions.width, actions.by_agent["seer_0"].width) == (12, 2)
    assert [(own.groups, own.agents, own.numbers, own.count) for own in actions.alike] == [
        (("walker",), (("walker_1", "walker_0"),), ((0, 1),), 2),
        (("seer",), (("seer_0",),), ((2,),), 1),
    ]
    for twin in (copy.deepcopy(actions), pickle.loads(pickle.dumps(actions))):
        assert set(vars(twin)) == {"agents", "each"}
        assert set(vars(twin.each[0])) == {"sizes", "starts", "size", "low", "high", "bits", "parts"}
        assert twin.columns == actions.columns
