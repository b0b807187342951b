"""Probe environments of teams under their published names: spaces, forms of actions, rewards, preparation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import IPPO, MADDPG
from agilerl.errors import EnvError
from agilerl.utils import probe_envs_ma as probes
from agilerl.utils.probe_envs_ma import prepare_ma_actions, prepare_ma_states

NAMES = [name for name in probes.__all__ if name.endswith("Env")]
ONE_STATE = ("ConstantReward", "FixedObsPolicy")


def test_there_are_thirty_six_of_them() -> None:
    assert len({getattr(probes, name) for name in NAMES}) == 36
    assert all(isinstance(getattr(probes, name), type) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_spaces_are_mappings_by_agent_and_callable(name: str) -> None:
    env = getattr(probes, name)()
    assert env.agents == env.possible_agents == list(env.observation_space) == list(env.action_space)
    assert (env.num_agents, env.max_num_agents) == (2, 2)
    count = 1 if name.startswith(ONE_STATE) else 2
    obs, infos = env.reset(0, None)
    for agent in env.agents:
        seen, acted = env.observation_space[agent], env.action_space(agent)
        assert (seen, acted) == (env.observation_space(agent), env.action_space[agent])
        image = spaces.Box(0, count - 1, (1, 3, 3), np.float32)
        expected = {"Dict": spaces.Dict(discrete=spaces.Discrete(count), box=image), "Image": image}
        kind = next((kind for kind in expected if kind in name), None)
        assert seen == (spaces.Discrete(count) if kind is None else expected[kind])
        width = 2 if name.startswith(("PolicyCont", "MultiPolicyCont")) else 1
        assert acted == (spaces.Box(0, 1, (width,), np.float32) if "ContActions" in name else spaces.Discrete(2))
        assert seen.contains(obs[agent])
        assert infos[agent] == {}


@pytest.mark.parametrize("name", ["PolicyEnv", "FixedObsPolicyContActionsEnv", "MultiPolicyDictEnv"])
def test_actions_come_as_numbers_rows_and_batches_of_one(name: str) -> None:
    env = getattr(probes, name)()
    good, rewards = 0.75 if "Cont" in name else 1, []
    for form in (good, [good], np.array([good]), np.array([[good]])):
        env.reset(seed=3)
        rewards.append(env.step(dict.fromkeys(env.possible_agents, form))[1])
    assert all(reward == rewards[0] for reward in rewards)
    env.reset(seed=3)
    with pytest.raises(EnvError, match="agent_0 takes"):
        env.step(dict.fromkeys(env.possible_agents, 2))


def test_rewards_by_hand() -> None:
    env = probes.PolicyContActionsEnv()
    env.reset(seed=0)
    env.state_number = 1  # the first agent sees sign 0, the second one sign 1
    actions = {"agent_0": np.array([0.25, 0.5]), "other_agent_0": np.array([[0.5, 0.0]])}
    _, reward, terminated, _, _ = env.step(actions)
    # (1, 0) is best for sign 0, and for the other's sign 1: 0.75² + 0.5² and 0.5² + 0².
    assert reward == {"agent_0": -0.8125, "other_agent_0": -0.25}
    assert terminated == {"agent_0": True, "other_agent_0": True}
    assert env.agents == env.possible_agents, "as published, also after the last step"
    joint = probes.MultiPolicyContActionsEnv()
    joint.reset(seed=0)
    joint.state_number = 1  # terms -0.25 and -0.5: their sum and half their product
    _, reward, *_ = joint.step({"agent_0": [0.5, 1.0], "other_agent_0": [0.5, 0.5]})
    assert reward == {"agent_0": -0.6875, "other_agent_0": -0.6875}
    assert joint.best_actions()["other_agent_0"].tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("cls", [IPPO, MADDPG])
@pytest.mark.parametrize("name", ["PolicyEnv", "ObsDependentRewardContActionsDictEnv", "DiscountedRewardImageEnv"])
def test_probes_take_what_teams_return(cls: Any, name: str) -> None:
    env = getattr(probes, name)()
    team = cls(env.observation_space, env.action_space, agent_ids=env.possible_agents, seed=1)
    team.set_training_mode(False)
    obs, infos = env.reset(seed=1)
    action = team.get_action(obs, infos)[0]
    assert set(env.step(action)[1]) == set(env.possible_agents)


def test_states_and_actions_are_prepared_as_tensors() -> None:
    observed = {"a": spaces.Discrete(3), "b": spaces.Dict(discrete=spaces.Discrete(2), box=spaces.Box(0, 1, (1, 3, 3)))}
    states = {
        "a": np.array([[0], [2]]),
        "b": {"discrete": np.array([1, 0]), "box": np.ones((2, 1, 3, 3), np.float32)},
    }
    for given in (observed, list(observed.values())):
        found = prepare_ma_states(states, given, "cpu")
        assert torch.equal(found["a"], torch.tensor([0, 2]))
        assert torch.equal(found["b"]["discrete"], torch.tensor([1, 0]))
        assert found["b"]["box"].shape == (2, 1, 3, 3)
    actions = prepare_ma_actions({"a": np.array([1, 0]), "b": np.array([[0.5, 0.25], [0, 1]])})
    assert actions["a"].tolist() == [[1], [0]]
    assert actions["b"].tolist() == [[0.5, 0.25], [0, 1]]
