"""The probe environments for teams under their published names; see `agilerl.testing.team_probes`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from agilerl.collect.replay import SharedReplay
from agilerl.core import tree as trees
from agilerl.envs.masks import ActionMasks
from agilerl.envs.teams import TeamLanes
from agilerl.errors import ConfigError
from agilerl.testing.team_probes import PUBLISHED, TeamProbe

__all__ = [
    *PUBLISHED, "check_on_policy_learning_with_probe_env", "check_policy_q_learning_with_probe_env",
    "prepare_ma_actions", "prepare_ma_states",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a published probe environment by its name."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def check_policy_q_learning_with_probe_env(
    env: TeamProbe, algo_class: object, algo_args: Mapping[str, Any], memory: Any, learn_steps: int = 1000,
    device: str = "cpu", *, num_steps: int = 512, tolerance: float = 0.1, seed: int = 0,
) -> Any:  # fmt: skip
    """Train critics of joint actions on random steps of a probe, and compare with its expected values.

    Every critic must match the probe's value of every joint action (on a grid for Box actions), given the learned
    policies, and every policy the probe's best action.

    Args:
        env: a probe. algo_class, algo_args: such as MADDPG, and its arguments without spaces, which are the probe's.
        memory: replay buffer, filled here. learn_steps: updates. num_steps: environment steps before them.
        tolerance: of values; for Box actions twice that, as a share of their range.

    Returns:
        The trained team.

    Raises:
        AssertionError: a value or an action differs; the message has expected and got.
    """
    team = _team(env, algo_class, {"device": device, **algo_args})
    lanes, draw = TeamLanes([lambda: env]), np.random.default_rng(seed)
    masks = ActionMasks(lanes.single_action_space)
    memory.set_action_spaces(dict(env.action_space))
    obs, _ = lanes.reset(np.array([seed]))
    for _ in range(num_steps):
        action = team.random_action(draw, (1,))
        batch = lanes.step(team.environment_action(action))
        assert batch.team is not None  # always set by team lanes
        SharedReplay(memory).write(obs, action, batch.team.reward, batch, masks)
        obs = batch.obs
    for _ in range(learn_steps):
        team.learn(memory.sample(team.batch_size))
    for number in range(len(env.signs)):
        _compare(env, team, number, tolerance)
    return team


def check_on_policy_learning_with_probe_env(
    env: TeamProbe, algo_class: object, algo_args: Mapping[str, Any], learn_steps: int = 1000, device: str = "cpu",
    discrete: bool | None = None, *, tolerance: float = 0.1, seed: int = 0,
) -> Any:  # fmt: skip
    """Train state values on rollouts, and compare with the probe's expected values.

    Every value must match the probe's optimal one, and every policy the probe's best action. The value of a stochastic
    policy of Box actions is below that of its best action, by the cost of its spread: the tolerance below is three
    times as large.

    Args:
        env: a probe. algo_class, algo_args: such as MAPPO, and its arguments without spaces, which are the probe's;
            `num_envs` copies of it are used.
        learn_steps: maximum number of rollouts; stops earlier once everything is right twice in a row.
        discrete: whether actions are Discrete; published, and ignored: the action spaces are used.
        tolerance: of values; for Box actions twice that, as a share of their range.

    Returns:
        The trained team.

    Raises:
        AssertionError: a value or an action differs; the message has expected and got.
        ConfigError: a recurrent team: every observation here is a start of an episode.
    """
    team = _team(env, algo_class, {"device": device, **algo_args})
    if team.is_recurrent:
        raise ConfigError(f"{team.algo}(recurrent=True) is not checked here. fix: train_multi_agent_on_policy.")
    lanes, draw = TeamLanes([lambda: copy.deepcopy(env)] * team.num_envs), np.random.default_rng(seed)
    obs, _ = lanes.reset(np.arange(team.num_envs) + seed)
    right, wrong = 0, None
    for number in range(1, learn_steps + 1):
        buffer = team.make_buffer(team.update_interval(), team.num_envs)
        while not buffer.full:
            with torch.no_grad():
                raw = team.policy_output(trees.map_leaves(torch.as_tensor, obs))
            action, log_prob = team.sample(raw, team.draw_exploration(draw, (team.num_envs,)))
            batch = lanes.step(team.environment_action(action))
            step = batch.team
            assert step is not None  # always set by team lanes
            ends = step.terminated, step.truncated
            buffer.add(obs, action, step.reward, *ends, log_prob, final_obs=batch.final_obs, valid=step.acted)
            obs = batch.obs
        buffer.last_obs = obs
        team.learn_buffer(buffer)
        if number % 5 == 0 or number == learn_steps:
            wrong = next(filter(None, (_wrong(env, team, state, tolerance) for state in range(len(env.signs)))), None)
            right = right + 1 if wrong is None else 0
            if right == 2:
                break
    if wrong is not None:
        raise AssertionError(wrong)
    return team


def prepare_ma_states(states: Mapping[str, Any], observation_space: Any, device: str = "cpu") -> dict[str, Any]:
    """Convert a batch of observations by agent to tensors for the networks of a team.

    Args:
        states: agent -> [B, ...] arrays, or nested ones.
        observation_space: by agent, a mapping or a list in the order of `states`; Discrete observations are integers
            [B], which the networks one-hot encode.

    Returns:
        agent -> tensors [B, ...] on `device`.
    """
    by_agent = (
        observation_space
        if isinstance(observation_space, Mapping)
        else dict(zip(states, observation_space, strict=True))
    )

    def prepared(agent: str) -> Any:
        tensors = trees.map_leaves(lambda x: torch.as_tensor(x, device=device), states[agent])
        return tensors.reshape(-1).long() if isinstance(by_agent[agent], spaces.Discrete) else tensors

    return {agent: prepared(agent) for agent in states}


def prepare_ma_actions(actions: Mapping[str, Any], device: str = "cpu") -> dict[str, torch.Tensor]:
    """Convert a batch of actions by agent to float32 tensors [B, W] on `device`; discrete actions are [B, 1]."""
    rows = {agent: torch.as_tensor(action, dtype=torch.float32, device=device) for agent, action in actions.items()}
    return {agent: row.reshape(len(row), -1) for agent, row in rows.items()}


def _team(env: TeamProbe, algo_class: Any, arguments: Mapping[str, Any]) -> Any:
    spaces_of = {"observation_spaces": env.observation_space, "action_spaces": env.action_space}
    return algo_class(**{**{name: dict(by_agent) for name, by_agent in spaces_of.items()}, **arguments})


def _joint_grid(env: TeamProbe) -> list[np.ndarray]:
    """Actions [B, W] of each agent at which values are compared: every choice, or three points of every range."""
    space = env.action_space(env.possible_agents[0])
    points, width = [np.arange(2.0)], 1
    if isinstance(space, spaces.Box):
        points, width = list(np.linspace(space.low, space.high, 5)[1:4].T), len(space.low)
    joint = np.meshgrid(*points * len(env.possible_agents), indexing="ij")
    return np.split(np.stack(joint, -1).reshape(-1, width * len(env.possible_agents)), len(env.possible_agents), -1)


def _text(action: Any) -> str:
    return ", ".join(f"{component:g}" for component in np.ravel(action))


def _wrong_action(env: TeamProbe, number: int, agent: str, action: Any, tolerance: float) -> str | None:
    """The error of an agent's action in one state, beyond the tolerance of Box actions; None if there is none."""
    best, space = env.best_actions(), env.action_space(agent)
    allowed = 2 * tolerance * float(space.high[0] - space.low[0]) if isinstance(space, spaces.Box) else 0.0
    if best is None or abs(np.ravel(action) - best[agent][number]).max() <= allowed:
        return None
    return f"state {number}: {agent} does {_text(action)}; the best action is {_text(best[agent][number])}."


def _wrong(env: TeamProbe, team: Any, number: int, tolerance: float) -> str | None:
    """The first error of a team with state values in one state; None if there is none."""
    expected = env.expected_value(team.gamma)
    action, _, _, value = team.get_action(env.show(number), training=False)
    for agent in env.possible_agents:
        if (wrong := _wrong_action(env, number, agent, action[agent], tolerance)) is not None:
            return wrong
        got, wanted = float(value[agent][0]), float(expected[agent][number])
        spread = 3 * tolerance if env.is_continuous and env.best_actions() is not None else tolerance
        if not -spread <= got - wanted <= tolerance:
            return f"state {number}: the value of {agent} is {got:.3f}; expected {wanted:.3f}."
    return None


def _compare(env: TeamProbe, team: Any, number: int, tolerance: float) -> None:
    seen = env.show(number)
    for agent, action in team.get_action(seen, training=False)[0].items():
        if (wrong := _wrong_action(env, number, agent, action, tolerance)) is not None:
            raise AssertionError(wrong)
    first, second = _joint_grid(env)
    one, other = (part if part.shape[1] > 1 else part[:, 0] for part in (first, second))
    expected = env.expected_q(number, one, other, team.gamma)
    batches = {a: trees.map_leaves(lambda x: np.repeat(np.asarray(x)[None], len(first), 0), s) for a, s in seen.items()}
    joint = trees.map_leaves(torch.as_tensor, {agent: batches[agent] for agent in sorted(batches)})
    stored = torch.from_numpy(team.actions.stored(np.concatenate([first, second], 1).astype(np.float32)))
    for name, network in team.evaluation_networks().items():
        kind, _, group = name.partition(".")
        if not kind.startswith("critic"):
            continue
        (agent,) = team.grouped_agents[group]
        with torch.no_grad():
            got = network(joint, team.actions.features(stored)).squeeze(-1).numpy(force=True)
        worst = int(np.abs(got - expected[agent]).argmax())
        if abs(got[worst] - expected[agent][worst]) > tolerance:
            raise AssertionError(
                f"state {number}: {name} gives {got[worst]:.3f} for actions {_text(first[worst])} and "
                f"{_text(second[worst])}; the value is {expected[agent][worst]:.3f}."
            )
