"""Agents whose ids are no strings, in a loop of one's own: actions come back under the ids of the environment."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from agilerl.algorithms import IPPO, MADDPG, MAPPO, MATD3
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer

NET = {"latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}
IDS = {"numbers": [0, 1], "tuples": [("x", 0), ("y", 1)]}
SEEN = Box(-1, 1, (3,))


def team(cls, ids):
    names = [f"{agent}" for agent in ids]
    return cls([SEEN] * 2, [Discrete(3)] * 2, agent_ids=names, net_config=NET, seed=0)


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
@pytest.mark.parametrize("cls", [IPPO, MAPPO, MADDPG, MATD3])
def test_actions_come_back_under_the_ids_of_the_environment(cls, ids):
    one, rng = team(cls, ids), np.random.default_rng(0)
    obs = {agent: rng.uniform(-1, 1, (5, 3)).astype(np.float32) for agent in ids}
    named = {str(agent): rows for agent, rows in obs.items()}
    masks = {agent: np.array([0, 1, 0]) for agent in ids}
    for own, plain in ((one.act(obs), one.act(named)), (one.predict(obs)[0], one.predict(named)[0])):
        assert list(own) == ids
        for agent in ids:
            np.testing.assert_array_equal(own[agent], plain[str(agent)])
    assert all((rows == 1).all() for rows in one.act(obs, mask=masks).values())
    parts = one.get_action(obs, infos={agent: {"action_mask": own} for agent, own in masks.items()})
    assert all(list(part) == ids for part in parts)
    assert all((np.asarray(rows) == 1).all() for rows in parts[0].values())


def test_a_loop_by_hand_stores_and_learns_from_replay():
    ids = [0, 1]
    one, rng = team(MADDPG, ids), np.random.default_rng(0)
    memory = MultiAgentReplayBuffer(64, ["obs", "action", "reward", "next_obs", "done"], ids)
    obs = {agent: rng.uniform(-1, 1, 3).astype(np.float32) for agent in ids}
    for step in range(32):
        action, raw = one.get_action(obs)
        after = {agent: rng.uniform(-1, 1, 3).astype(np.float32) for agent in ids}
        memory.save_to_memory(
            obs, raw, dict.fromkeys(ids, float(step)), after, dict.fromkeys(ids, False), is_vectorised=False
        )
        obs = after
    before = one.actors["0"].state_dict()["head_net.model.linear_output.weight"].clone()
    one.learn(memory.sample(16))
    assert (one.actors["0"].state_dict()["head_net.model.linear_output.weight"] != before).any()
    assert set(action) == set(ids)


def test_an_unknown_agent_is_still_named():
    with pytest.raises(Exception, match="unknown agent '7'"):
        team(IPPO, [0, 1]).act({7: np.zeros(3, np.float32)})
