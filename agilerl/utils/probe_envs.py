"""The probe environments under their published names, and checks that an agent learns each of them.

`testing.probes` has the tasks: with integers, images and dictionaries as observations, with Discrete actions
and with Box ones in [0, 1]. `env.observations` are all possible observations, `env.expected_q(gamma)` the value of each
action. The checks compare the learned values with these, and raise AssertionError if they differ.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from agilerl.components.data import Transition
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.testing.probes import PUBLISHED, RecallEnv

__all__ = [
    *PUBLISHED, "MemoryEnv", "check_policy_on_policy_with_probe_env", "check_policy_q_learning_with_probe_env",
    "check_q_learning_with_probe_env",
]  # fmt: skip
MemoryEnv = RecallEnv
VALUE_ERROR = 0.15  # of returns between -1 and 1: tolerance for a short run of a small network
ACTION_ERROR = 0.2  # of a range of 1: the reward is 0.04 below the best


def __getattr__(name: str) -> Any:
    """Return a published probe environment by its name."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def check_q_learning_with_probe_env(
    env: Any, algo_class: Any, algo_args: dict[str, Any], memory: Any, learn_steps: int = 1000,
    device: str | torch.device = "cpu",
) -> Any:  # fmt: skip
    """Learn the values of every discrete action from random experience, and compare them with the expected ones.

    Args:
        env: a probe environment. algo_class, algo_args: the agent is `algo_class(**algo_args, device=device)`.
        memory: an empty replay buffer. learn_steps: updates.

    Returns:
        The agent.

    Raises:
        AssertionError: a value is off by more than `VALUE_ERROR`.
    """
    agent = _learned(env, algo_class(**algo_args, device=device), memory, learn_steps)
    with torch.no_grad():
        values = agent.actor(_all_observations(env)).cpu().numpy()
    np.testing.assert_allclose(values, env.expected_q(agent.gamma), atol=VALUE_ERROR, err_msg=_what(agent, env, "Q"))
    return agent


def check_policy_q_learning_with_probe_env(
    env: Any, algo_class: Any, algo_args: dict[str, Any], memory: Any, learn_steps: int = 1000,
    device: str | torch.device = "cpu",
) -> Any:  # fmt: skip
    """See `check_q_learning_with_probe_env`, for continuous actions: checks Q at the policy's actions, and the policy.

    Raises:
        AssertionError: a value is off by more than `VALUE_ERROR`, or an action by more than `ACTION_ERROR`.
    """
    agent = _learned(env, algo_class(**algo_args, device=device), memory, learn_steps)
    observations, space = _all_observations(env), env.action_space
    chosen = np.asarray(agent.get_action(observations, training=False), np.float64).reshape(len(env.observations), -1)
    best = env.unwrapped.best_actions()
    if best is not None:
        np.testing.assert_allclose(chosen, best, atol=ACTION_ERROR, err_msg=_what(agent, env, "the policy"))
    low, high = agent.raw_bounds
    raw = low + (high - low) * (chosen - space.low) / (space.high - space.low)
    name = "critic" if "critic" in vars(agent) else "critic_1"
    with torch.no_grad():
        values = getattr(agent, name)(observations, raw.astype(np.float32)).cpu().numpy()[:, 0]
    wanted = env.unwrapped.values_of(chosen, agent.gamma)
    np.testing.assert_allclose(values, wanted, atol=VALUE_ERROR, err_msg=_what(agent, env, "Q of the policy"))
    return agent


def check_policy_on_policy_with_probe_env(
    env: foreign.Env, algo_class: Any, algo_args: dict[str, Any], learn_steps: int = 5000,
    device: str | torch.device = "cpu", discrete: bool | None = None,
) -> Any:  # fmt: skip
    """Learn from rollouts, and compare values and policy with the optimal ones.

    Args:
        learn_steps: maximum number of rollouts; stops earlier once everything is right.
        discrete: whether actions are Discrete; published, and ignored: the action space is used.
        others: see `check_q_learning_with_probe_env`.

    Raises:
        AssertionError: a value is off by more than `VALUE_ERROR` (for continuous actions, only if it is too high), a
            continuous action by more than `ACTION_ERROR`, or a discrete action is not optimal.
    """
    agent, last = algo_class(**algo_args, device=device), (None,) * 4
    right = 0
    for number in range(1, learn_steps + 1):
        _, *last = collect_rollouts(agent, env, None, *last)  # type: ignore[assignment]
        agent.learn()
        if number % 20 == 0:
            right = right + 1 if _wrong(agent, env) is None else 0
            if right == 2:  # twice in a row, to exclude chance
                break
    error = _wrong(agent, env)
    assert error is None, error
    return agent


def _learned(env: foreign.Env, agent: Any, memory: Any, learn_steps: int) -> Any:
    """The agent after `learn_steps` updates from 500 random transitions."""
    lone, draws = copy.deepcopy(env), np.random.default_rng(0)
    raw = bool(agent.action_form.raw)
    obs, _ = lone.reset(seed=0)
    for _ in range(500):
        action = agent.random_action(draws, (1,))
        next_obs, reward, terminated, truncated, _ = lone.step(agent.environment_action(action)[0])
        row = Transition(obs, action[0] if raw else int(action[0]), float(reward), next_obs, bool(terminated))
        memory.add(row.unsqueeze(0))
        obs = lone.reset()[0] if terminated or truncated else next_obs
    for _ in range(learn_steps):
        agent.learn(memory.sample(agent.batch_size))
    agent.set_training_mode(False)
    return agent


def _wrong(agent: Any, env: Any) -> str | None:
    """The first error after learning from rollouts; None if all is right."""
    observations, count = _all_observations(env), len(env.observations)
    action, _, _, value = agent.get_action(observations, training=False)[:4]
    each = env.unwrapped.expected_q(agent.gamma)
    wanted = each.max(axis=1)
    best = env.unwrapped.best_actions() if env.unwrapped.width else None
    # The value of a stochastic policy is below that of its best action, by the cost of its spread.
    off = np.abs(value - wanted) if best is None else value - wanted
    if off.max() > VALUE_ERROR:
        return f"{_what(agent, env, 'V')}: expected {wanted}, got {value}"
    if best is not None and np.abs(action.reshape(count, -1) - best).max() > ACTION_ERROR:
        return f"{_what(agent, env, 'the policy')}: expected {best}, got {action.reshape(count, -1)}"
    if each.shape[1] > 1 and (each[np.arange(count), action.reshape(count)] < wanted - 1e-9).any():
        return f"{_what(agent, env, 'the policy')}: actions {action.reshape(count)} are not best in {each}"
    return None


def _all_observations(env: Any) -> Any:
    """All possible observations [S, ...]."""
    shown = list(env.observations)
    return trees.stack(env.observation_space, shown)


def _what(agent: foreign.Agent, env: foreign.Env, what: str) -> str:
    name = type(env).__name__
    return f"{agent.algo} has not learned {what} of {name}, the probe of: {type(env.unwrapped).__doc__}"
