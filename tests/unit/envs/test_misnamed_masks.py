"""Masks under a key of another library: said once, for single, vector and team environments; no word where none is."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from agilerl.envs.step import as_lanes
from agilerl.envs.teams import TeamLanes
from agilerl.errors import AgileRLWarning

SEEN, ACTIONS = Box(-1, 1, (2,)), Discrete(3)


class Masked(gym.Env):
    observation_space, action_space = SEEN, ACTIONS

    def __init__(self, key, actions=ACTIONS):
        self.key, self.action_space = key, actions

    def info(self):
        return {self.key: np.array([1, 0, 1])}

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), self.info()

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, self.info()


def team(name, key):
    class Team:
        def __init__(self):
            self.possible_agents, self.metadata, self.render_mode = ["a", "b"], {"name": name}, None

        def observation_space(self, agent):
            return SEEN

        def action_space(self, agent):
            return ACTIONS

        def step(self, actions):
            raise NotImplementedError

        def reset(self, seed=None, options=None):
            self.agents = list(self.possible_agents)
            return dict.fromkeys(self.agents, np.zeros(2, np.float32)), {a: {key: np.ones(3)} for a in self.agents}

        def close(self):
            pass

    Team.__name__ = name
    return Team


def said(make, name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    return [str(w.message) for w in caught if issubclass(w.category, AgileRLWarning) and name in str(w.message)]


@pytest.mark.parametrize("key", ["action_masks", "legal_actions"])
def test_a_mask_of_another_name_is_said_once(key):
    single = type(f"Single_{key}", (Masked,), {})
    told = said(lambda: [as_lanes(single(key)).reset() for _ in range(2)], single.__name__)
    assert told == [
        f"{single.__name__}: info['{key}'] is ignored, so every action counts as legal. "
        "fix: info['action_mask'], 1 = legal, if it is a mask."
    ]
    assert said(lambda: TeamLanes([team(f"team_{key}", key)]).reset(), key)


def test_a_vector_says_it_too():
    class InVector(Masked):
        pass

    vector = gym.vector.SyncVectorEnv([lambda: InVector("action_masks")] * 2)
    assert said(lambda: as_lanes(vector).reset(), "action_masks")


def test_no_word_of_the_right_key_or_of_actions_that_are_no_choices():
    right, box = type("RightKey", (Masked,), {}), type("BoxKey", (Masked,), {})
    assert said(lambda: as_lanes(right("action_mask")).reset(), "RightKey") == []
    assert said(lambda: as_lanes(box("action_masks", Box(-1, 1, (1,)))).reset(), "BoxKey") == []
