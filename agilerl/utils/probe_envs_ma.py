"""The probe environments for teams under their published names; see `agilerl.envs.probe_teams`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from agilerl import tree as trees
from agilerl.envs.masks import ActionMasks
from agilerl.envs.probe_teams import (
    ConstantTeam,
    DiscountedTeam,
    FixedObsPolicyTeam,
    JointPolicyTeam,
    ObsDependentTeam,
    PolicyTeam,
    TeamProbe,
)
from agilerl.envs.teams import TeamLanes
from agilerl.errors import ConfigError
from agilerl.sources.replay import SharedReplay

__all__ = [
    "ConstantRewardContActionsDictEnv",
    "ConstantRewardContActionsEnv",
    "ConstantRewardContActionsImageEnv",
    "ConstantRewardDictEnv",
    "ConstantRewardEnv",
    "ConstantRewardImageEnv",
    "DiscountedRewardContActionsDictEnv",
    "DiscountedRewardContActionsEnv",
    "DiscountedRewardContActionsImageEnv",
    "DiscountedRewardDictEnv",
    "DiscountedRewardEnv",
    "DiscountedRewardImageEnv",
    "FixedObsPolicyContActionsDictEnv",
    "FixedObsPolicyContActionsEnv",
    "FixedObsPolicyContActionsImageEnv",
    "FixedObsPolicyDictEnv",
    "FixedObsPolicyEnv",
    "FixedObsPolicyImageEnv",
    "MultiPolicyContActionsDictEnv",
    "MultiPolicyContActionsEnv",
    "MultiPolicyContActionsImageEnv",
    "MultiPolicyDictEnv",
    "MultiPolicyEnv",
    "MultiPolicyImageEnv",
    "ObsDependentRewardContActionsDictEnv",
    "ObsDependentRewardContActionsEnv",
    "ObsDependentRewardContActionsImageEnv",
    "ObsDependentRewardDictEnv",
    "ObsDependentRewardEnv",
    "ObsDependentRewardImageEnv",
    "PolicyContActionsDictEnv",
    "PolicyContActionsEnv",
    "PolicyContActionsImageEnv",
    "PolicyDictEnv",
    "PolicyEnv",
    "PolicyImageEnv",
    "check_on_policy_learning_with_probe_env",
    "check_policy_q_learning_with_probe_env",
]

ConstantRewardEnv = ConstantTeam
ConstantRewardImageEnv = partial(ConstantTeam, form="image")
ConstantRewardDictEnv = partial(ConstantTeam, form="dict")
ConstantRewardContActionsEnv = partial(ConstantTeam, continuous=True)
ConstantRewardContActionsImageEnv = partial(ConstantTeam, form="image", continuous=True)
ConstantRewardContActionsDictEnv = partial(ConstantTeam, form="dict", continuous=True)
ObsDependentRewardEnv = ObsDependentTeam
ObsDependentRewardImageEnv = partial(ObsDependentTeam, form="image")
ObsDependentRewardDictEnv = partial(ObsDependentTeam, form="dict")
ObsDependentRewardContActionsEnv = partial(ObsDependentTeam, continuous=True)
ObsDependentRewardContActionsImageEnv = partial(ObsDependentTeam, form="image", continuous=True)
ObsDependentRewardContActionsDictEnv = partial(ObsDependentTeam, form="dict", continuous=True)
DiscountedRewardEnv = DiscountedTeam
DiscountedRewardImageEnv = partial(DiscountedTeam, form="image")
DiscountedRewardDictEnv = partial(DiscountedTeam, form="dict")
DiscountedRewardContActionsEnv = partial(DiscountedTeam, continuous=True)
DiscountedRewardContActionsImageEnv = partial(DiscountedTeam, form="image", continuous=True)
DiscountedRewardContActionsDictEnv = partial(DiscountedTeam, form="dict", continuous=True)
FixedObsPolicyEnv = FixedObsPolicyTeam
FixedObsPolicyImageEnv = partial(FixedObsPolicyTeam, form="image")
FixedObsPolicyDictEnv = partial(FixedObsPolicyTeam, form="dict")
FixedObsPolicyContActionsEnv = partial(FixedObsPolicyTeam, continuous=True)
FixedObsPolicyContActionsImageEnv = partial(FixedObsPolicyTeam, form="image", continuous=True)
FixedObsPolicyContActionsDictEnv = partial(FixedObsPolicyTeam, form="dict", continuous=True)
PolicyEnv = PolicyTeam
PolicyImageEnv = partial(PolicyTeam, form="image")
PolicyDictEnv = partial(PolicyTeam, form="dict")
PolicyContActionsEnv = partial(PolicyTeam, continuous=True)
PolicyContActionsImageEnv = partial(PolicyTeam, form="image", continuous=True)
PolicyContActionsDictEnv = partial(PolicyTeam, form="dict", continuous=True)
MultiPolicyEnv = JointPolicyTeam
MultiPolicyImageEnv = partial(JointPolicyTeam, form="image")
MultiPolicyDictEnv = partial(JointPolicyTeam, form="dict")
MultiPolicyContActionsEnv = partial(JointPolicyTeam, continuous=True)
MultiPolicyContActionsImageEnv = partial(JointPolicyTeam, form="image", continuous=True)
MultiPolicyContActionsDictEnv = partial(JointPolicyTeam, form="dict", continuous=True)


def check_policy_q_learning_with_probe_env(
    env: TeamProbe,
    algo_class: Any,
    algo_args: Mapping[str, Any],
    memory: Any,
    learn_steps: int = 1000,
    device: str = "cpu",
    *,
    num_steps: int = 512,
    tolerance: float = 0.1,
    seed: int = 0,
) -> Any:
    """Let an algorithm with critics of joint actions learn from random steps of a probe, and compare with its answers.

    Every critic must give the probe's value of every joint action (on a grid, of Box actions) where each policy does
    what it has learned, and every policy the probe's best action.

    Args:
        env: a probe. algo_class, algo_args: MADDPG, say, and its arguments but for the spaces, which are the probe's.
        memory: replay buffer, which is filled here. learn_steps: updates. num_steps: steps of the environment before.
        tolerance: of values, and of Box actions in units of the environment.

    Returns:
        The trained team.

    Raises:
        AssertionError: a value or an action is not the probe's; says which, expected and got.
    """
    agents = env.possible_agents
    observed, acted = ({agent: space(agent) for agent in agents} for space in (env.observation_space, env.action_space))
    team = algo_class(**{"observation_spaces": observed, "action_spaces": acted, "device": device, **algo_args})
    lanes, draw = TeamLanes([lambda: env]), np.random.default_rng(seed)
    masks = ActionMasks(lanes.single_action_space)
    obs, _ = lanes.reset(np.array([seed]))
    for _ in range(num_steps):
        action = team.random_action(draw, (1,))
        batch = lanes.step(team.environment_action(action))
        assert batch.team is not None  # lanes of teams say it
        SharedReplay(memory).write(obs, action, batch.team.reward, batch, masks)
        obs = batch.obs
    for _ in range(learn_steps):
        team.learn(memory.sample(team.batch_size))
    for number in range(len(env.signs)):
        _compare(env, team, number, tolerance)
    return team


def check_on_policy_learning_with_probe_env(
    env: TeamProbe,
    algo_class: Any,
    algo_args: Mapping[str, Any],
    learn_steps: int = 1000,
    device: str = "cpu",
    *,
    tolerance: float = 0.1,
    seed: int = 0,
) -> Any:
    """Let an algorithm with values of states learn from rollouts of its own, and compare with the probe's answers.

    Every value must be the probe's where all do what is best, and every policy the probe's best action. A policy of Box
    actions is a distribution, worth less than its best action by what its spread costs: such values may lie three
    times as far below.

    Args:
        env: a probe. algo_class, algo_args: MAPPO, say, and its arguments but for the spaces, which are the probe's;
            `num_envs` copies of it are played in.
        learn_steps: most rollouts; it ends before that, once everything is right, twice in a row.
        tolerance: of values; of Box actions, in units of the environment, three times that.

    Returns:
        The trained team.

    Raises:
        AssertionError: a value or an action is not the probe's; says which, expected and got.
        ConfigError: a team with a memory: what it is shown here begins an episode each time.
    """
    agents = env.possible_agents
    observed, acted = ({agent: space(agent) for agent in agents} for space in (env.observation_space, env.action_space))
    team = algo_class(**{"observation_spaces": observed, "action_spaces": acted, "device": device, **algo_args})
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
            assert step is not None  # lanes of teams say it
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


def _wrong(env: TeamProbe, team: Any, number: int, tolerance: float) -> str | None:
    """What a team with values of states does not know of one state."""
    best, expected = env.best_actions(), env.expected_value(team.gamma)
    action, _, _, value = team.get_action(env.show(number), training=False)
    for agent in env.possible_agents:
        chosen, got, wanted = float(np.ravel(action[agent])[0]), float(value[agent][0]), float(expected[agent][number])
        spread = 3 * tolerance if env.is_continuous and best is not None else tolerance
        if best is not None and abs(chosen - best[agent][number]) > (3 * tolerance if env.is_continuous else 0):
            return f"state {number}: {agent} does {chosen:g}; the best action is {float(best[agent][number]):g}."
        if not -spread <= got - wanted <= tolerance:
            return f"state {number}: the value of {agent} is {got:.3f}; expected {wanted:.3f}."
    return None


def _compare(env: TeamProbe, team: Any, number: int, tolerance: float) -> None:
    seen, best = env.show(number), env.best_actions()
    policy = {agent: float(np.ravel(a)[0]) for agent, a in team.get_action(seen, training=False)[0].items()}
    if best is not None:
        for agent, action in policy.items():
            wanted = float(best[agent][number])
            if abs(action - wanted) > (3 * tolerance if env.is_continuous else 0):
                raise AssertionError(f"state {number}: {agent} does {action:g}; the best action is {wanted:g}.")
    grid = np.array([3.0, 4.0, 5.0]) if env.is_continuous else np.arange(2.0)
    first, second = (np.ravel(part) for part in np.meshgrid(grid, grid, indexing="ij"))
    expected = env.expected_q(number, first, second, team.gamma)
    batches = {a: trees.map_leaves(lambda x: np.repeat(np.asarray(x)[None], len(first), 0), s) for a, s in seen.items()}
    joint = trees.map_leaves(torch.as_tensor, {agent: batches[agent] for agent in sorted(batches)})
    stored = torch.from_numpy(team.actions.stored(np.stack([first, second], 1).astype(np.float32)))
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
                f"state {number}: {name} gives {got[worst]:.3f} for actions {first[worst]:g} and {second[worst]:g}; "
                f"the value is {expected[agent][worst]:.3f}."
            )
