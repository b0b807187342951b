"""Rollouts of on-policy agents: recording, hidden states, and conversion of experiences from custom loops.

A rollout is filled by the `Recorder`, or passed as the published experiences of a custom loop. Both give the same
update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.on_policy import HiddenStates, OnPolicyAlgorithm
from agilerl.algorithms.base.policy_actions import stored_shape
from agilerl.algorithms.base.transitions import check_discrete_actions
from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.components.rollout_store import RolloutStore
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.spaces import short_form
from agilerl.core.tree import leaves, map_leaves
from agilerl.engine.protocol import Mask
from agilerl.envs.masks import ActionMasks
from agilerl.envs.observed_masks import by_row, carries_mask, parted, split_mask
from agilerl.envs.protocol import StepBatch
from agilerl.errors import ShapeError, warn_once
from agilerl.networks.distributions import distribution_of

FIELDS = ("observations", "actions", "log_probs", "rewards", "dones", "values", "next_obs", "next_done")
EXTRA = ("truncateds", "final_observations")
MORE = ("action_masks", "hidden_states", "final_values", "last_values")  # in a mapping, or next to a tuple


class RolloutExperiences(tuple[Any, ...]):
    """The published tuple, with optional fields for action masks and recurrent agents.

    Attributes:
        more: the available fields of `MORE`; see `buffer_from_experiences`.
    """

    more: dict[str, Any]

    def __new__(cls, entries: Iterable[Any], more: Mapping[str, Any] | None = None) -> Self:
        instance = super().__new__(cls, entries)
        instance.more = dict(more or {})
        return instance


def buffer_from_experiences(agent: OnPolicyAlgorithm, experiences: Any) -> RolloutStore:
    """Convert six lists over time of [E, ...] arrays, `next_obs` and `next_done` to a full rollout buffer.

    `dones[t]` is the flag BEFORE step t: step t ended an episode if `dones[t + 1]` (`next_done` for the last step) is
    set. Such an end counts as termination by default. Truncation is marked by a ninth and a tenth entry or, in a
    mapping, by `truncateds` (step t hit a time limit, [E] each) and `final_observations` (the observations after step t
    and before any reset, [E, ...] each). The value of the final observation is then bootstrapped.

    A mapping (or `RolloutExperiences.more`) may also contain:

    * `action_masks`: [E, A] bool each, the legal actions of each step; all are legal by default.
    * `hidden_states`: for a recurrent agent, key -> [layers, E, units] before each step; by default sequences start at
      zero. `final_values` ([E] each, read where `truncateds`) and `last_values` [E] are then the values of the final
      observations and of `next_obs`, which cannot be computed from an observation alone.

    A list may contain ONE array stacked over time [T, E, ...] ([T, ...] for a single environment) instead of steps.

    Raises:
        ShapeError: missing entries, or lists of different lengths.
    """
    fields = named_experiences(experiences)
    observations, steps = fields["observations"], len(fields["observations"])
    if not steps:
        raise ShapeError("PPO.learn got experiences of no steps at all. fix: append every step of the rollout.")
    dones = _flags(fields["dones"], fields["next_done"], steps)
    more = [name for name in MORE[:-1] if fields.get(name) is not None]
    for name in ("actions", "log_probs", "rewards", "values", *more):
        if len(fields[name]) != steps:
            raise ShapeError(
                f"PPO.learn got {len(fields[name])} entries in {name} for {steps} observations. "
                "fix: append one of each in every vector step."
            )
    truncateds, finals = fields.get("truncateds"), fields.get("final_observations")
    if truncateds is not None and (finals is None or len(truncateds) != steps or len(finals) != steps):
        raise ShapeError("truncateds and final_observations need one entry for each observation. fix: add them.")
    space = agent.observation_space
    rewards = [np.asarray(_array(r), np.float64).reshape(-1) for r in fields["rewards"]]
    lanes = len(rewards[0])
    masks, hidden, final_values = (fields.get(name) for name in MORE[:-1])
    if masks is None and carries_mask(observations[0], space):
        masks = [by_row(split_mask(obs, space)[1]) for obs in observations]
    reader = ActionMasks(agent.action_space, "PPO.learn", ShapeError)
    buffer = agent.make_buffer(steps, lanes, 0 if masks is None else reader.width)
    for t in range(steps):
        cut = np.zeros(lanes, bool) if truncateds is None else np.asarray(_array(truncateds[t]), bool).reshape(-1)
        buffer.add(
            _batched(space, observations[t], lanes),
            _actions(agent.action_space, fields["actions"][t], lanes),
            rewards[t],
            np.asarray(dones[t + 1], bool).reshape(-1) & ~cut,
            cut,
            _array(fields["log_probs"][t]).reshape(lanes),
            _array(fields["values"][t]).reshape(lanes),
            final_obs=None if finals is None else _batched(space, finals[t], lanes),
            final_value=None if final_values is None else _array(final_values[t]),
            legal=None if masks is None else reader.of_caller(masks[t], lanes, "action_masks"),
            hidden=None if hidden is None else map_leaves(_array, hidden[t]),
        )
    buffer.last_obs = _batched(space, fields["next_obs"], lanes)
    if fields.get("last_values") is not None:
        buffer.last_value = _array(fields["last_values"]).reshape(lanes)
    return buffer


def named_experiences(experiences: Any) -> dict[str, Any]:
    """Return the entries of the tuple by name, with steps in lists. ShapeError for anything else."""
    return _unstacked(entries_of(experiences, "PPO", "as listed, or learn() after collect_rollouts(agent, env)"))


def entries_of(experiences: Any, algo: str, fix: str) -> dict[str, Any]:
    """Return the entries of the tuple by name; a mapping is unchanged. ShapeError for anything else."""
    if isinstance(experiences, Mapping):
        fields = dict(experiences)
    elif isinstance(experiences, tuple | list) and len(experiences) in (len(FIELDS), len(FIELDS) + len(EXTRA)):
        fields = dict(zip((*FIELDS, *EXTRA), experiences, strict=False))
        if isinstance(experiences, RolloutExperiences):
            fields |= experiences.more
    else:
        size = f" of {len(experiences)}" if isinstance(experiences, tuple | list) else ""
        raise ShapeError(
            f"{algo}.learn got a {type(experiences).__name__}{size}; expected a tuple of {len(FIELDS)}: "
            f"{', '.join(FIELDS)}. fix: {fix}."
        )
    missing = [name for name in FIELDS if fields.get(name) is None]
    if missing:
        raise ShapeError(f"{algo}.learn got experiences without {', '.join(missing)}. fix: add them.")
    return fields


def _unstacked(fields: dict[str, Any]) -> dict[str, Any]:
    """Convert lists of one array over time to lists of steps; everything else is unchanged.

    One vector step of many lanes is also a list of one array. The two are distinguished by the number of lanes, taken
    from `next_done`.
    """
    listed = [name for name in (*FIELDS[:6], *EXTRA, *MORE[:-1]) if fields.get(name) is not None]
    if any(not isinstance(fields[name], list | tuple) or len(fields[name]) != 1 for name in listed):
        return fields
    rows, lanes = np.size(_array(fields["rewards"][0])), np.size(_array(_only(fields["next_done"])))
    unstacked = fields | {name: map_leaves(_only, fields[name]) for name in ("next_obs", "next_done")}
    if rows == lanes or rows % max(1, lanes) or fields["dones"][0] is fields["dones"]:
        return unstacked
    steps = rows // lanes
    for name in listed:
        stacked = map_leaves(_array, fields[name][0])
        unstacked[name] = [map_leaves(lambda x, t=t: x[t], stacked) for t in range(steps)]
    return unstacked


def _only(value: Any) -> Any:
    """Return the entry of a list of one; anything else is unchanged."""
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def _flags(dones: Sequence[Any], next_done: Any, steps: int) -> list[Any]:
    """Return the flags before steps 0 .. T, the last of them after the rollout.

    A list that contains itself (`dones.append(dones)`) has no ends within the rollout.
    """
    if any(entry is dones for entry in dones):
        warn_once(
            "dones-self",
            "PPO.learn: `dones` holds itself, so that ends in mid-rollout are unknown and count as none. "
            "fix: dones.append(done) in place of dones.append(dones).",
            stacklevel=6,
        )
        lanes = np.asarray(_array(next_done)).reshape(-1)
        return [np.zeros(len(lanes), bool)] * steps + [lanes]
    if len(dones) != steps:
        raise ShapeError(
            f"PPO.learn got {len(dones)} entries in dones for {steps} observations. "
            "fix: dones.append(done), the flags before the step, in every vector step."
        )
    return [*(_array(entry) for entry in dones), _array(next_done)]


def _array(x: Any) -> np.ndarray:
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)


def _actions(space: gym.Space[Any], actions: Any, lanes: int) -> np.ndarray:
    """Return stored actions [E, ...]; int64 for Discrete and MultiDiscrete spaces.

    Raises:
        ShapeError: wrong count, or invalid choices.
    """
    array, wanted = _array(actions), (lanes, *stored_shape(space))
    if array.size != np.prod(wanted, dtype=int):
        raise ShapeError(f"PPO.learn got actions of shape {array.shape}; expected {wanted}. fix: those of get_action.")
    array = array.reshape(wanted)
    if isinstance(space, gym.spaces.Discrete):
        check_discrete_actions(torch.as_tensor(array), int(space.n), "PPO.learn")
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        check_rows(space, array)
    return array.astype(np.int64) if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete) else array


def check_rows(space: gym.Space[Any], rows: np.ndarray) -> None:
    """Raise ShapeError if rows [E, K] of Dict or Tuple actions contain an invalid choice."""
    start = 0
    for part in distribution_of(space).parts:
        values, start = rows[:, start : start + part.columns], start + part.columns
        if part.is_continuous:
            continue
        highest = np.array(part.sizes) if part.kind != "bernoulli" else 2
        if ((values < 0) | (values >= highest) | (values != np.floor(values))).any():
            raise ShapeError(
                f"PPO.learn got actions that are none of {short_form(space)}. "
                "fix: store the rows that get_action returned, choices counted from 0."
            )


def _batched(space: Any, obs: Any, lanes: int) -> Any:
    """Return observations [E, ...]; one of a single environment gets a leading axis."""
    arrays = map_leaves(_array, parted(obs, space)[0])
    first = next(leaves(arrays))
    shape = next(leaves(trees.stack(space, [space.sample()]))).shape[1:]
    return map_leaves(lambda x: x[None], arrays) if first.shape == shape and lanes == 1 else arrays


def with_observations(experiences: Any, change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the published experiences by name, with `change` applied to all observations."""
    fields = named_experiences(experiences)
    for name in ("observations", "final_observations"):
        if fields.get(name) is not None:
            fields[name] = [change(obs) for obs in fields[name]]
    return {**fields, "next_obs": change(fields["next_obs"])}


def empty_buffer(agent: OnPolicyAlgorithm, steps: int) -> RolloutBuffer:
    """Create an empty buffer for `steps` vector steps of the agent's lanes."""
    return RolloutBuffer(
        steps, agent.observation_space, agent.action_space, agent.num_envs, agent.device, agent.gae_lambda, agent.gamma,
        agent.recurrent, agent.hidden_state_architecture, max_seq_len=agent.max_seq_len,
        bptt_sequence_type=agent.bptt_sequence_type, seed=agent.seed,
    )  # fmt: skip


def checked_buffer(buffer: RolloutBuffer | None, algo: str) -> RolloutBuffer:
    """Return an agent's buffer for learning; ShapeError if it is empty or the value after its last step is unknown."""
    if buffer is None or not buffer.position:
        raise ShapeError(
            f"{algo}.learn() found an empty rollout buffer. "
            "fix: collect_rollouts(agent, env) before it, or learn(experiences): Experiences must be provided."
        )
    if buffer.last_obs is None and buffer.last_value is None:
        raise ShapeError(
            f"{algo}.learn() does not know what followed the last step of its rollout buffer. "
            "fix: rollout_buffer.compute_returns_and_advantages(last_value, last_done), or add(next_obs=)."
        )
    return buffer


# --- filling a buffer ------------------------------------------------------------------------------------------------


class Recorder:
    """Acts with one agent and stores the transitions of each vector step."""

    active: np.ndarray | None = None  # all lanes are stepped

    def __init__(self, agent: OnPolicyAlgorithm, buffer: RolloutBuffer) -> None:
        self.agent, self.buffer = agent, buffer
        self._takes_mask = foreign.takes(agent, "get_action", "action_mask")
        self._now: dict[str, Any] = {}

    @property
    def full(self) -> bool:
        """Whether the rollout is complete."""
        return self.buffer.full

    def restart(self) -> None:
        """Start an episode in all lanes."""
        self.agent._hidden = None

    def act(self, obs: Any, mask: Mask = None) -> Any:
        """Return exploring actions for the environment from observations [E, ...]."""
        agent = self.agent
        hidden = agent._hidden
        if agent.recurrent and hidden is None:
            hidden = agent.get_initial_hidden_state(self.buffer.num_envs)
        mask = mask if self._takes_mask else None
        # An overridden get_action need not accept arguments that do not apply.
        arguments: dict[str, Any] = {} if mask is None else {"action_mask": mask}
        arguments |= {"hidden_state": hidden} if agent.recurrent else {}
        action, log_prob, _, value, *state = agent.get_action(obs, **arguments)
        self._now = {"obs": obs, "action": action, "log_prob": log_prob, "value": value, "legal": mask}
        if state:
            assert hidden is not None
            self._now["hidden"] = {key: part.cpu().numpy() for key, part in hidden.items()}
            agent._hidden = state[0]
        return agent.environment_action(action)

    def store(self, reward: np.ndarray, batch: StepBatch) -> None:
        """Store the result of the last `act`."""
        if self._now["legal"] is not None and not self.buffer.num_legal and not self.buffer.position:
            self.buffer.num_legal = int(self._now["legal"].shape[-1])
        self.buffer.add(
            reward=reward,
            terminated=batch.terminated,
            truncated=batch.truncated,
            final_obs=batch.final_obs,
            final_value=self._value(batch.final_obs) if batch.truncated.any() else None,
            valid=batch.mask,
            **self._now,
        )
        if self.agent._hidden is not None:
            begins = torch.from_numpy(batch.terminated | batch.truncated | ~batch.mask)
            for part in self.agent._hidden.values():
                part[:, begins.to(part.device)] = 0

    def _value(self, obs: Any) -> np.ndarray | None:
        """Return V [E] after the last step; None if it can be computed from the observation alone."""
        hidden = self.agent._hidden
        return None if hidden is None else self.agent.recur(self.agent._modules_engine, obs, hidden)[1].cpu().numpy()

    def finish(self, obs: Any) -> None:
        """Complete the rollout; `obs` follows its last step."""
        self.buffer.last_obs, self.buffer.last_value = obs, self._value(obs)

    def chosen(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Return copies of (actions, log probabilities, values) of every step, [E, ...] each."""
        action, log_prob, value = (list(self.buffer.stored(k).copy()) for k in ("action", "log_prob", "value"))
        return action, log_prob, value


# --- hidden states ----------------------------------------------------------------------------------------------------


def output_of(result: Any) -> Tensor:
    """Return a network's output without its next hidden state."""
    output: Tensor = result[0] if isinstance(result, tuple) else result
    return output


def hidden_of(name: str, hidden: Mapping[str, Tensor]) -> tuple[HiddenStates, ...]:
    """Return a network's further inputs: its own hidden state or the shared one; empty if feed-forward."""
    whose = {key: key.partition("_")[::2] for key in hidden}
    state = {rest: hidden[key] for key, (owner, rest) in whose.items() if owner in (name, "shared")}
    return (state,) if state else ()
