"""`predict` as Stable-Baselines3 calls it: sampled actions, and episodes that begin in some environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_acting import ACTIONS, AGENTS, OBSERVATIONS, SINGLE, TEAMS, made

import agilerl
from agilerl.algorithms import DQN, PPO, SAC, find_algorithm
from agilerl.algorithms.base.wrapped import RSNorm
from agilerl.core.rng import Purpose, stream
from agilerl.errors import NotAvailableYetError

ROWS = np.random.default_rng(0).uniform(-1, 1, (64, 3)).astype(np.float32)


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("algo", SINGLE)
def test_sampled_actions_are_of_the_space_and_leave_training_alone(algo: str, actions: str) -> None:
    agent = made(algo, "Box", actions, seed=3)
    agent.set_training_mode(True)
    exploration, global_state = agent._exploration.bit_generator.state, torch.random.get_rng_state()
    sampled, state = agent.predict(ROWS, deterministic=False)
    assert state is None
    assert len(sampled) == len(ROWS)
    assert all(ACTIONS[actions].contains(np.asarray(action)) for action in sampled)
    assert agent.training
    assert agent._exploration.bit_generator.state == exploration
    assert torch.equal(global_state, torch.random.get_rng_state())
    assert ACTIONS[actions].contains(np.asarray(agent.predict(ROWS[0], deterministic=False)[0]))
    has_distribution = algo in ("PPO", "SAC", "TQC", "CQL", "IQL") or (algo == "BC" and actions != "Box")
    is_greedy = np.array_equal(sampled, agent.act(ROWS))
    assert is_greedy != has_distribution, "policies without a distribution act greedily"


def test_samples_are_those_of_the_documented_stream() -> None:
    agent = SAC(OBSERVATIONS["Box"], spaces.Box(-2, 2, (2,)), seed=5)
    rng = stream(5, Purpose.PREDICTION)
    with torch.no_grad():
        mean, log_std = agent.actor.output(ROWS).chunk(2, -1)
    for _ in range(2):
        noise = torch.from_numpy(rng.standard_normal((64, 2))).float()
        expected = 2 * (mean + log_std.clamp(-20, 2).exp() * noise).tanh()
        np.testing.assert_allclose(agent.predict(ROWS, deterministic=False)[0], expected, atol=1e-5)


def test_frequencies_are_the_probabilities_of_the_policy() -> None:
    agent = PPO(OBSERVATIONS["Box"], spaces.Discrete(3), seed=1)
    last = agent.actor.head_net.model.get_submodule("linear_output")
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.log(torch.tensor([0.1, 0.2, 0.7])))
    drawn = agent.predict(np.zeros((20_000, 3), np.float32), deterministic=False)[0]
    # three standard errors of a share of 20,000 draws are at most 0.0106
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, [0.1, 0.2, 0.7], atol=0.0106)
    masked = agent.predict(np.zeros((500, 3), np.float32), deterministic=False, mask=np.array([1, 1, 0]))[0]
    assert set(masked.tolist()) == {0, 1}


def test_episodes_that_begin_in_some_environments_reset_their_states_alone() -> None:
    agent: Any = PPO(OBSERVATIONS["Box"], ACTIONS["Box"], recurrent=True, seed=2)
    _, state = agent.predict(ROWS[:3])
    before = {key: part.clone() for key, part in state.items()}
    action, after = agent.predict(ROWS[3:6], state, np.array([False, True, False]))
    assert all(torch.equal(state[key], part) for key, part in before.items()), "the argument is not changed"
    for lane, begun in ((0, False), (1, True), (2, False)):
        one = None if begun else {key: part[:, lane : lane + 1] for key, part in state.items()}
        alone, alone_after = agent.predict(ROWS[3 + lane][None], one)
        np.testing.assert_allclose(action[lane], alone[0], atol=1e-6)
        for key, part in alone_after.items():
            torch.testing.assert_close(after[key][:, lane], part[:, 0])
    every, _ = agent.predict(ROWS[3:6], state, np.array([True, True, True]))
    np.testing.assert_allclose(every, agent.predict(ROWS[3:6])[0], atol=1e-6)
    sampled, following = agent.predict(ROWS[:3], state, deterministic=False)
    assert not np.array_equal(sampled, agent.predict(ROWS[:3], state)[0])
    assert following.keys() == state.keys()


@pytest.mark.parametrize("algo", TEAMS)
def test_teams_sample_by_agent(algo: str) -> None:
    actions = ACTIONS["Discrete" if algo in ("QMIX", "VDN") else "Box"]
    team: Any = find_algorithm(algo)([OBSERVATIONS["Box"]] * 2, [actions] * 2, agent_ids=list(AGENTS), seed=4)
    seen = dict.fromkeys(AGENTS, ROWS)
    sampled, greedy = team.predict(seen, deterministic=False)[0], team.act(seen)
    for agent in AGENTS:
        assert all(actions.contains(action) for action in sampled[agent])
        assert np.array_equal(sampled[agent], greedy[agent]) == (algo in ("MADDPG", "MATD3", "QMIX", "VDN"))


def test_wrappers_sample_through_their_observations() -> None:
    agent, twin = (PPO(OBSERVATIONS["Box"], ACTIONS["Box"], seed=6) for _ in range(2))
    wrapped = RSNorm(agent)
    wrapped.observe(ROWS * 3 + 2, count=True)
    expected = twin.predict(wrapped.observe(ROWS), deterministic=False)[0]
    np.testing.assert_allclose(wrapped.predict(ROWS, deterministic=False)[0], expected, atol=1e-6)
    first, second = (wrapped.predict(ROWS, deterministic=False)[0] for _ in range(2))
    assert not np.array_equal(first, second), "the stream goes on"


class Lowest(DQN):
    """Takes the action of the lowest value."""

    def get_action(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        return self.actor(obs).argmin(-1).numpy()


def test_a_class_with_its_own_get_action_is_not_sampled_by_another_rule() -> None:
    agent = Lowest(OBSERVATIONS["Box"], ACTIONS["Discrete"])
    assert len(agent.predict(ROWS)[0]) == 64
    with pytest.raises(NotAvailableYetError, match=r"Lowest has a get_action of its own.*fix: agent.get_action\(obs\)"):
        agent.predict(ROWS, deterministic=False)


def test_the_best_of_a_run_plays_gymnasium_as_it_is_and_as_it_is_loaded(tmp_path: Path) -> None:
    settings = {"training": {"evo_steps": 64, "eval_episodes": 1, "target_score": None}}
    run = agilerl.train(
        "CartPole-v1", "PPO", config=settings, population=1, steps=64, seed=1, out=tmp_path, verbose=False
    )
    assert run.path is not None
    loaded = agilerl.load(run.path).best
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    for _ in range(5):
        action, state = run.best.predict(obs, state=None, episode_start=np.array([False]), deterministic=True)
        assert (action, state) == loaded.predict(obs)
        obs, *_ = env.step(action)
    first, again = (agilerl.load(run.path).best.predict(ROWS[:, [0, 1, 2, 0]], deterministic=False)[0] for _ in "ab")
    np.testing.assert_array_equal(first, again)
    env.close()


# --- Stable-Baselines3 -----------------------------------------------------------------------------------------------


def test_evaluate_policy_of_stable_baselines3_scores_as_evaluate_does() -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    agent = PPO(*(getattr(gym.make("CartPole-v1"), f"{kind}_space") for kind in ("observation", "action")), seed=1)
    single, lanes = gym.make("CartPole-v1"), make_vec_env("CartPole-v1", 4, seed=0)
    returns, lengths = evaluate_policy(agent, single, 5, return_episode_rewards=True, warn=False)
    assert len(returns) == 5
    assert returns == lengths, "a point per step"
    returns, lengths = evaluate_policy(agent, lanes, 8, return_episode_rewards=True, warn=False)
    assert len(returns) == 8
    sampled, _ = evaluate_policy(agent, lanes, 20, deterministic=False, return_episode_rewards=True, warn=False)
    assert 10 < np.mean(sampled) < 100, "about 22: as random play"
    # seeded alike, both play the same episodes: a greedy policy in a deterministic environment
    for seed in (3, 4):
        env = gym.make("CartPole-v1")
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(agent.predict(obs)[0])
            total, over = total + reward, terminated or truncated
        fixed = make_vec_env("CartPole-v1", 1, seed=seed)
        assert evaluate_policy(agent, fixed, 1, warn=False)[0] == total


def test_evaluate_policy_carries_the_memory_of_a_recurrent_agent() -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    spec = gym.make("CartPole-v1")
    agent = PPO(spec.observation_space, spec.action_space, recurrent=True, seed=1)
    seen: list[Any] = []
    usual = agent.predict

    def spied(obs: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True) -> Any:
        seen.append((state is None, np.asarray(episode_start).copy()))
        return usual(obs, state, episode_start, deterministic)

    agent.predict = spied  # type: ignore[method-assign]
    evaluate_policy(agent, make_vec_env("CartPole-v1", 2, seed=0), 4, warn=False)
    assert seen[0][0], "the first call has no state"
    assert seen[0][1].all()
    assert not any(no_state for no_state, _ in seen[1:])
    assert any(starts.any() and not starts.all() for _, starts in seen), "episodes end at different steps"


def test_evaluate_policy_plays_boxes_and_dict_observations() -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.envs import SimpleMultiObsEnv
    from stable_baselines3.common.evaluation import evaluate_policy

    pendulum = gym.make("Pendulum-v1")
    agent = SAC(pendulum.observation_space, pendulum.action_space, seed=1)
    mean, deviation = evaluate_policy(agent, pendulum, 2, warn=False)
    assert -2000 < mean < 0
    assert deviation >= 0
    both = SimpleMultiObsEnv(random_start=False, channel_last=False)
    reader: Any = DQN(both.observation_space, both.action_space, seed=1)
    assert np.isfinite(evaluate_policy(reader, both, 1, warn=False)[0])
