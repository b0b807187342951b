"""Acting outside of training: `predict` with the arguments of Stable-Baselines3, and `act`, of any agent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.actions import legal_actions, seen_with_mask
from agilerl.core import foreign, tree
from agilerl.core.checkpoint import load_tree, save_tree
from agilerl.core.rng import Purpose, stream
from agilerl.core.spaces import nested
from agilerl.engine.protocol import Mask
from agilerl.envs.returned import short
from agilerl.errors import AlgorithmError, ArgumentError, NotAvailableYetError, ShapeError
from agilerl.telemetry.evaluation import Evaluation

ACTING = ("get_action", "_greedy", "greedy", "environment_action", "policy_output")  # a policy file contains none
Policy = Callable[..., Any]  # (observations [E, ...], mask) -> actions [E, ...] of the environment


class Predicting:
    """Acting outside of training, evaluation and files of any agent, wrapped or not."""

    def predict(
        self: Any,
        obs: Any,
        state: object = None,
        episode_start: Any = None,
        deterministic: bool = True,
        *,
        mask: Any = None,
    ) -> tuple[Any, Any]:
        """Return (action in the environment's format, next hidden state) for one observation or a batch.

        The arguments are those of Stable-Baselines3's `predict`. Networks run in evaluation mode; the agent's mode and
        memory are unchanged.

        Args:
            obs: observation of the environment, or a batch [E, ...]; for several agents a mapping by self. PettingZoo's
                {"observation", "action_mask"} is accepted. The action has a leading axis if the observation has one.
            state: hidden state from the last call, for recurrent agents (key -> [layers, E, units]); None starts an
                episode. Other agents ignore it and return None.
            episode_start: [E] or one bool: environments whose episode starts with `obs`, whose states are reset.
            deterministic: False samples a stochastic policy. The numbers come from a stream of the agent's seed that
                nothing else reads (`Purpose.PREDICTION`), so that training and its exploration do not change. Policies
                without a distribution (those of values, and deterministic ones) act greedily in either case, as in
                Stable-Baselines3.
            mask: 1 = legal, for one environment or each; for several agents a mapping by self.

        Raises:
            NotAvailableYetError: language policy, or sampling from a class with a `get_action` of the user.
            ShapeError: no observation, or `state` or `episode_start` of another number of environments.
        """
        if self.learns_language or self.reads_texts:
            raise NotAvailableYetError(f"{self.algo} writes texts and has no actions. fix: agent.get_action(prompts).")
        if obs is None:
            raise ShapeError(f"{self.algo} got None for an observation. fix: agent.act(obs) of env.reset().")
        policy = greedy_of(self) if deterministic else _sampling(self)
        before, memory = self.training, self._playing if self.is_recurrent else None
        self.set_training_mode(False)
        try:
            if self.is_recurrent:
                self._playing = _begun(self, state, episode_start)
            is_team = hasattr(self, "agent_ids")
            act_once = self.predicted_actions if is_team else partial(_action, self)
            return act_once(obs, mask, policy, episode_start), self._playing if self.is_recurrent else None
        finally:
            self.set_training_mode(before)
            if self.is_recurrent:
                self._playing = memory

    def act(self: Any, obs: tree.Tree, mask: tree.Tree | None = None, **unknown: Any) -> Any:
        """Return only the greedy action, see `predict`. Raises AlgorithmError for recurrent agents, whose state must be
        carried between calls, and ArgumentError for an unknown argument, such as `action_mask`."""
        if unknown:
            raise ArgumentError(
                f"{self.algo}.act takes obs and mask (1 = legal); got {', '.join(unknown)}. "
                "fix: agent.act(obs, mask=...)."
            )
        if self.is_recurrent:
            raise AlgorithmError(f"act(): {self.algo} has a memory. fix: action, state = agent.predict(obs, state).")
        return self.predict(obs, mask=mask)[0]

    def evaluate(
        self: Any, episodes: int = 100, seed: int | None = None, env: Any = None, max_steps: int | None = None
    ) -> Evaluation:
        """Run greedy episodes and summarise their returns; neither `fitness` nor training is affected.

        Args:
            episodes: number of episodes. seed: seed of the episodes; None uses the agent's held-out stream, so that two
                calls play the same episodes.
            env: anything that trains; None creates the agent's training environment.
            max_steps: truncate episodes after this many steps and count the return so far. None uses the limit of
                training: `training.eval_steps`, else the environment's own limit, else a default that is reported when
                it truncates an episode.

        Raises:
            EnvError: no environment is given and none is known.
        """
        from agilerl.algorithms.base.evaluation import evaluate  # makes environments

        return evaluate(self, episodes, seed, env, max_steps)

    def save_checkpoint(self: Any, path: str | Path) -> None:
        """Save the agent atomically to one file: safetensors with a JSON manifest in its header, no pickle."""
        save_tree(path, self.state())

    def load_checkpoint(self: Any, path: str | Path) -> None:
        """Load a file of `save_checkpoint` in place. The agent stays on its device.
        Raises RunError (a ValueError) if the file is of an agent with another registry or other spaces."""
        self.load_state(load_tree(path), str(path))


# --- policies -------------------------------------------------------------------------------------------------------


def greedy_of(agent: Any) -> Callable[..., Any]:
    """Return the agent's greedy policy, (observations [E, ...], mask) -> actions [E, ...] for the environment.

    A class of the user with a `get_action` acts by it, in the mode that the agent is in, unless it overrides `_greedy`.
    """
    if not foreign.defined_outside(type(agent), "get_action", unless="_greedy"):
        return cast(Policy, agent._greedy)
    takes = {name for name in ("epsilon", "action_mask", "infos") if foreign.takes(agent, "get_action", name)}
    return partial(_by_get_action_of_team if hasattr(agent, "agent_ids") else _by_get_action, agent, takes)


def _by_get_action(agent: Any, takes: set[str], obs: Any, mask: Mask = None) -> Any:
    """Return greedy actions by the agent's `get_action`, with those of the named arguments that it takes."""
    named = {"epsilon": 0.0} | ({} if mask is None else {"action_mask": mask})
    result = agent.get_action(obs, **{name: value for name, value in named.items() if name in takes})
    return environment_actions(agent, result[0] if isinstance(result, tuple) else result, tree.count_rows(obs))


def environment_actions(agent: Any, action: tree.Tree, count: int) -> Any:
    """Return `checked_actions` of the agent's space, clipped to its bounds."""
    space, array = agent.action_space, checked_actions(agent, action, count, agent.action_space)
    return np.clip(array, space.low, space.high) if isinstance(space, gym.spaces.Box) else array


def checked_actions(agent: Any, action: tree.Tree, count: int, space: gym.Space[Any]) -> Any:
    """Return the result of a user's `get_action` as `count` actions of the space, numbers of its own dtype if discrete.
    Raises ShapeError unless it is one action for each observation."""
    if not isinstance(space, gym.Space) or isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        return action
    array = action.detach().cpu().numpy() if isinstance(action, Tensor) else np.asarray(action)
    shape = (count, *(space.shape or ()))
    is_discrete = not isinstance(space, gym.spaces.Box)
    is_off = array.dtype.kind not in "biuf" or array.size != math.prod(shape)
    if is_off or (is_discrete and (array != np.rint(array)).any()):
        raise ShapeError(
            f"{type(agent).__name__}.get_action returned {short(action)} for {count} observations; expected one action "
            f"of {space} for each. fix: an array of {space.dtype}, of shape {shape}."
        )
    return array.reshape(shape).astype(space.dtype if is_discrete else array.dtype)


def _by_get_action_of_team(team: Any, takes: set[str], obs: Any, mask: Mask = None) -> Any:
    """Return greedy actions [E, A] of a team for its lanes, by its `get_action`."""
    infos = (team.team.infos(obs, {}, mask),) if "infos" in takes else ()
    result = team.get_action(team.team.by_agent(obs), *infos)
    return team.team.join_decided(result[0] if isinstance(result, tuple) else result)


def sampled_of(agent: Any, rng: np.random.Generator) -> Policy:
    """Return the agent's policy with sampled actions, see `greedy_of`.
    Raises NotAvailableYetError if the class has a `get_action` of the user."""
    if foreign.defined_outside(type(agent), "get_action", unless="_sampled"):
        raise NotAvailableYetError(
            f"{type(agent).__name__} has a get_action of its own, which predict(deterministic=False) does not replace. "
            "fix: agent.get_action(obs)."
        )
    return partial(agent._sampled, rng)


def _sampling(agent: Any) -> Policy:
    if agent._predictions is None:
        agent._predictions = stream(agent.seed, Purpose.PREDICTION, member=abs(int(agent.index)))
    return sampled_of(agent, agent._predictions)


# --- hidden states ----------------------------------------------------------------------------------------------------


def _begun(agent: Any, state: Any, episode_start: Any) -> Any:
    """Return the hidden state before this step: zeros where an episode starts; None if all start.
    Raises ShapeError for a state of another form."""
    is_mapping = isinstance(state, Mapping) and all(torch.is_tensor(part) and part.ndim == 3 for part in state.values())
    if agent.is_recurrent and state is not None and not is_mapping:
        raise ShapeError(
            f"{agent.algo}.predict got a state of type {type(state).__name__}, which it has not returned. "
            "fix: the state that the last call returned, or None."
        )
    if state is None or episode_start is None or not np.any(episode_start):
        return state
    starts = np.asarray(episode_start, bool).reshape(-1)
    if starts.all():
        return None
    begun = {key: part.clone() for key, part in state.items()}
    for part in begun.values():
        if part.shape[1] == len(starts):  # `check_count` names any other
            part[:, torch.from_numpy(starts).to(part.device)] = 0
    return begun


def check_count(agent: Any, count: int, episode_start: Any) -> None:
    """Raise ShapeError unless state and `episode_start` are of `count` environments."""
    parts = {} if not agent.is_recurrent or agent._playing is None else agent._playing
    sizes = {int(part.shape[1]) for part in parts.values()}
    sizes |= set() if episode_start is None or np.ndim(episode_start) == 0 else {int(np.size(episode_start))}
    if sizes - {count}:
        raise ShapeError(
            f"{agent.algo}.predict got {count} observations, and a state or episode_start of "
            f"{', '.join(map(str, sorted(sizes)))}. fix: the state that the last call returned, or None."
        )


def is_one_observation(space: gym.Space[Any], obs: tree.Tree) -> bool:
    """Whether an observation lacks a leading environment axis."""

    def lacks(part: gym.Space[Any], values: Any) -> bool:
        is_text = isinstance(values, str) or np.asarray(values).dtype.kind in "US"  # of `WordCounts`
        return np.ndim(values) == (0 if is_text else len(part.shape or ()))

    axes = tree.map_leaves(lacks, nested(space), obs)
    return bool(next(iter(tree.leaves(axes))))


def _action(agent: Any, obs: Any, mask: tree.Tree, policy: Policy, episode_start: object) -> Any:
    obs, mask = seen_with_mask(agent, obs, mask, warns=False)
    is_one = is_one_observation(agent.observation_space, obs)
    if is_one:
        obs = tree.map_leaves(lambda x: np.asarray(x)[None], obs)
    count = tree.count_rows(obs)
    check_count(agent, count, episode_start)
    actions = policy(obs, legal_actions(agent, mask, count))
    return tree.take(actions, 0) if is_one else actions
