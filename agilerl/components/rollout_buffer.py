"""Published rollout buffer for custom loops, on top of the store that learners read."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import Space

from agilerl.components.data import to_tensordict
from agilerl.components.rollout_store import RolloutStore, Truncation
from agilerl.components.rows import host_array
from agilerl.core import tree as trees
from agilerl.core.rng import Purpose, resolve_seed, stream
from agilerl.core.spaces import nested, parts_of, short_form
from agilerl.core.tree import Tree, leaves, map_leaves
from agilerl.envs.masks import ActionMasks
from agilerl.envs.observed_masks import by_row, parted
from agilerl.errors import AgileRLWarning, ConfigError, ReplayError, ShapeError
from agilerl.losses.returns import gae

if TYPE_CHECKING:
    from tensordict import TensorDict

PUBLISHED = {  # key of `get` -> field of the store
    "observations": "obs", "actions": "action", "rewards": "reward", "values": "value", "log_probs": "log_prob",
}  # fmt: skip


class RolloutBuffer(RolloutStore):
    """Rollouts of one agent in E environments, filled manually or by `collect_rollouts`.

        buffer.add(obs, action, reward, done, value, log_prob)       # in every vector step
        buffer.compute_returns_and_advantages(last_value, last_done)
        agent.learn()                                                # of an agent whose rollout_buffer this is

    Args:
        capacity: T, vector steps. num_envs: E.
        observation_space, action_space: spaces of one environment.
        device: device of `get_tensor_batch`.
        gae_lambda, gamma: λ and γ of `compute_returns_and_advantages`; an agent keeps those of its buffer equal to its
            own.
        recurrent: whether hidden states are stored, described by `hidden_state_architecture`: key -> (layers, units),
            or (layers, E, units) as published.
        use_gae: False uses Monte-Carlo returns, bootstrapped at the end: λ = 1.
        wrap_at_capacity: a full buffer overwrites its oldest step; otherwise adding to it is an error.
        max_seq_len, bptt_sequence_type: stored only; the agent decides how sequences are cut.
        seed: seed of the rows sampled by `get(n)`.

    Attributes:
        advantages, returns: [T, E] after they are computed; None before.
        others: see `RolloutStore`.

    Raises:
        ConfigError: a capacity or number of environments below 1, or a recurrent buffer without an architecture.
    """

    def __init__(
        self, capacity: int, observation_space: gym.Space[Any], action_space: gym.Space[Any], num_envs: int = 1,
        device: str | torch.device = "cpu", gae_lambda: float = 0.95, gamma: float = 0.99, recurrent: bool = False,
        hidden_state_architecture: Mapping[str, Sequence[int]] | None = None, use_gae: bool = True,
        wrap_at_capacity: bool = False, max_seq_len: int | None = None, bptt_sequence_type: object = "chunked",
        *, num_legal: int = 0, seed: int | None = None,
    ) -> None:  # fmt: skip
        if recurrent and not hidden_state_architecture:
            raise ConfigError(
                "RolloutBuffer(recurrent=True): hidden_state_architecture must be provided. "
                "fix: agent.hidden_state_architecture."
            )
        shapes = (hidden_state_architecture or {}) if recurrent else {}
        architecture = {key: (int(shape[0]), int(shape[-1])) for key, shape in shapes.items()}
        self.device, self.gae_lambda, self.gamma = device, float(gae_lambda), float(gamma)
        self.recurrent, self.use_gae, self.wrap_at_capacity = bool(recurrent), bool(use_gae), bool(wrap_at_capacity)
        self.max_seq_len, self.bptt_sequence_type = max_seq_len, bptt_sequence_type
        self._rng = stream(resolve_seed(seed), Purpose.REPLAY)
        self._choices = _choices(action_space)
        super().__init__(capacity, num_envs, observation_space, action_space, architecture, num_legal)

    def reset(self) -> None:
        super().reset()
        self._added = 0
        self.advantages: np.ndarray | None = None
        self.returns: np.ndarray | None = None

    @property
    def pos(self) -> int:
        """Index of the next vector step: the number of stored steps, restarting at 0 if the buffer wraps."""
        return self._added % self.capacity if self.wrap_at_capacity else self.position

    def size(self) -> int:
        """Stored transitions of all environments."""
        return self.position * self.num_envs

    # -- in ----------------------------------------------------------------------------------------------------------

    def add(  # type: ignore[override]  # as published
        self, obs: Any, action: Any, reward: Any, done: object = None, value: object = None, log_prob: Any = None,
        next_obs: Tree | None = None, hidden_state: Mapping[str, Any] | None = None,
        next_hidden_state: Mapping[str, Any] | None = None, episode_start: object = None,
        action_mask: Tree | None = None, *, terminated: Any = None, truncated: object = None, **more: Any,
    ) -> None:  # fmt: skip
        """Store one vector step; arrays or tensors with a leading axis of E, optional for a single environment.

        Args:
            obs: before the step. action, log_prob: result of `get_action` for it. reward: of the step.
            done: whether the step ended the episode. It counts as termination unless `truncated` is given.
            value: V(obs).
            next_obs: after the step. That of the last step is used to bootstrap if `compute_returns_and_advantages` is
                not called; also read where `truncated`, where it is the FINAL observation, before any reset.
            hidden_state: of a recurrent agent, key -> [layers, E, units], before the step.
            next_hidden_state: published; not stored, since it is the `hidden_state` of the next step, or zeros.
            episode_start: whether this step is the first of an episode: the step before then ended one.
            action_mask: [E, W], 1 = legal, if an action mask was applied: in any form that `envs.masks` reads.
            terminated, truncated: separate the two meanings of `done`.
            more: see `RolloutStore.add`.

        Raises:
            ShapeError: the buffer is full, a value is missing, or rows do not fit the spaces. ReplayError: NaN or Inf.
        """
        if terminated is not None:
            cut = self._flags(np.zeros(self.num_envs, bool) if truncated is None else truncated)
            if more.get("valid") is None:  # `collect_rollouts` passes it, for steps that are checked already
                self._check_observations(self._batched(parted(obs, self.observation_space)[0]))
                action, reward = self._actions(action), self._numbers(reward, "reward")
            self._store(obs, action, reward, terminated, cut, log_prob=log_prob, value=value, **more)
            return
        missing = [name for name, x in (("done", done), ("value", value), ("log_prob", log_prob)) if x is None]
        if missing:
            raise ShapeError(f"RolloutBuffer.add got no {', '.join(missing)}. fix: those of get_action and env.step.")
        if self.recurrent and hidden_state is None:
            raise ShapeError(
                "RolloutBuffer.add of a recurrent agent needs the hidden state from before the step. "
                "fix: hidden_state=, at first agent.get_initial_hidden_state(num_envs)."
            )
        obs, beside = parted(obs, self.observation_space)
        next_obs = parted(next_obs, self.observation_space)[0]
        action_mask = by_row(beside) if action_mask is None else action_mask
        if action_mask is not None:
            reader = ActionMasks(self.action_space, "RolloutBuffer.add", ShapeError)
            legal = reader.of_caller(action_mask, self.num_envs)
            if not self.position:
                self.num_legal = legal.shape[-1]
            more["legal"] = legal
        terminal, cut = self._flags(done), self._flags(np.zeros(1) if truncated is None else truncated)
        before, after = self._batched(obs), None if next_obs is None else self._batched(next_obs)
        self._check_observations(before)
        if after is not None:
            self._check_observations(after, "next_obs")
        actions, rewards = self._actions(action), self._numbers(reward, "reward")
        more |= {"log_prob": self._numbers(log_prob, "log_prob"), "value": self._numbers(value, "value")}
        if hidden_state is not None:
            more["hidden"] = {key: host_array(part) for key, part in hidden_state.items()}
        begins = None if episode_start is None else self._flags(episode_start)
        if begins is not None and self.position:
            last = self.position - 1
            unknown = begins & ~self.fields["truncated"][last]
            self.fields["terminated"][last] |= unknown
        self._store(before, actions, rewards, terminal & ~cut, cut, final_obs=after, **more)
        self.last_obs = after

    def _store(self, obs: Any, action: Any, reward: Any, terminated: Any, truncated: Any, **more: Any) -> None:
        self.advantages = self.returns = self.last_value = None
        if self.full and self.wrap_at_capacity:
            for leaf in leaves(self.fields):
                leaf[:-1] = leaf[1:].copy()
            remaining = [part for part in self.truncations if part.step]
            self.truncations = [Truncation(part.step - 1, part.lanes, part.obs, part.value) for part in remaining]
            self.position -= 1
        super().add(obs, action, reward, terminated, truncated, **more)
        self._added += 1

    def _flags(self, values: object) -> np.ndarray:
        flags = _real(values, "done").reshape(-1)
        if len(flags) not in (1, self.num_envs) or not np.isin(flags, (0, 1)).all():
            raise ShapeError(
                f"RolloutBuffer.add got {len(flags)} flags for {self.num_envs} environments: {flags[:8].tolist()}. "
                "fix: one for each, 0 or 1."
            )
        return np.broadcast_to(flags.astype(bool), (self.num_envs,)).copy()

    def _numbers(self, values: object, name: str) -> np.ndarray:
        """Return one number per environment [E]."""
        numbers = _real(values, name).reshape(-1)
        if len(numbers) != self.num_envs:
            raise ShapeError(
                f"RolloutBuffer.add: {name} got {len(numbers)} numbers for {self.num_envs} environments. "
                "fix: one for each."
            )
        _check_finite(numbers, name)
        return numbers if numbers.dtype.kind == "f" else numbers.astype(np.float32)

    def _actions(self, action: object) -> np.ndarray:
        """Return actions [E, *shape], as integers for discrete ones."""
        actions, shape = _real(action, "action"), tuple(self.action_space.shape or ())
        if isinstance(self.action_space, gym.spaces.Dict | gym.spaces.Tuple):  # flat numeric rows
            shape = (len(self._choices),)
        if actions.size != self.num_envs * int(np.prod(shape, dtype=int)):
            raise ShapeError(
                f"RolloutBuffer.add got actions of shape {actions.shape}; expected {(self.num_envs, *shape)}. "
                "fix: store what get_action returned."
            )
        actions = actions.reshape(self.num_envs, *shape)
        rows = actions.reshape(self.num_envs, -1)
        _check_finite(rows, "action")
        wrong = (self._choices > 0) & ((rows < 0) | (rows >= self._choices) | (rows != np.floor(rows)))
        if wrong.any():
            row = int(np.argmax(wrong.any(1)))
            raise ShapeError(
                f"RolloutBuffer.add got action {actions[row].tolist()} in environment {row}, which is outside of "
                f"{short_form(self.action_space)} (choices count from 0). fix: store what get_action returned."
            )
        choices = isinstance(self.action_space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
        return actions.astype(np.int64) if choices else actions

    def _check_observations(self, obs: Tree, name: str = "obs", space: Space[Any] | None = None) -> None:
        """Raise ShapeError for observations [E, ...] that do not fit the space, ReplayError for NaN or Inf."""
        space = self.observation_space if space is None else space
        parts = parts_of(space)
        if parts:
            rows = trees.untuple(obs)
            missing = [key for key in parts if not isinstance(rows, Mapping) or key not in rows]
            if missing:
                raise ShapeError(
                    f"RolloutBuffer.add got {name} without the part {missing[0]!r} of {short_form(space)}. "
                    "fix: observations of the environment that the buffer was built for."
                )
            for key, part in parts.items():
                self._check_observations(rows[key], f"{name}[{key!r}]", part)
            return
        if isinstance(obs, np.ndarray) and obs.dtype.kind == "U":  # texts, which agents read as counts
            return
        shape, rows = tuple(space.shape or ()), _real(obs, name)
        shapes = {(self.num_envs, *shape)}
        if len(shape) == 3:  # images, also with their channels first
            shapes.add((self.num_envs, shape[2], *shape[:2]))
        if rows.shape not in shapes:
            raise ShapeError(
                f"RolloutBuffer.add got {name} of shape {rows.shape}; expected {(self.num_envs, *shape)}. "
                "fix: observations of the environment that the buffer was built for."
            )
        _check_finite(rows, name)

    def _batched(self, obs: Any) -> Any:
        """Return observations [E, ...], adding the axis for a single environment."""
        arrays = map_leaves(host_array, obs)
        shape = next(leaves(trees.stack(self.observation_space, [self.observation_space.sample()]))).shape[1:]
        alone = self.num_envs == 1 and next(leaves(arrays)).shape == shape
        return map_leaves(lambda x: x[None], arrays) if alone else arrays

    # -- returns -----------------------------------------------------------------------------------------------------

    def compute_returns_and_advantages(self, last_value: Tree, last_done: Tree | None = None) -> None:
        """Compute advantages and returns of all stored steps, in float64, into `advantages` and `returns` [T, E].

        A step that ended an episode is not bootstrapped and cuts the trace; see `losses.returns.gae`.

        Args:
            last_value: [E] value of the observation after the last step.
            last_done: [E] whether the last step ended the episode; overrides its `done`.

        Raises:
            ShapeError: nothing is stored, or a required value is unknown.
        """
        if not self.position:
            raise ShapeError("the rollout buffer is empty: there is nothing to compute. fix: add(...) first.")
        last, final = self.position - 1, self._numbers(last_value, "last_value")
        if last_done is not None:
            self.fields["terminated"][last] |= self._flags(last_done) & ~self.fields["truncated"][last]
        self.last_value = final
        if not self.values_known:
            raise ShapeError("returns need the value of every step. fix: add(..., value=...).")
        value, after = self._of("value"), np.concatenate((self._of("value")[1:], final[None].astype(np.float64)))
        for part in self.truncations:
            if part.value is None:
                raise ShapeError(
                    "a step that a time limit cut off needs the value of its final observation. "
                    "fix: add(..., truncated=..., final_value=...), or learn() alone, which asks the critic."
                )
            after[part.step, part.lanes] = part.value
        terminated, truncated, valid = (self.stored(name) for name in ("terminated", "truncated", "valid"))
        cut = terminated | truncated | ~valid
        lam = self.gae_lambda if self.use_gae else 1.0
        discount = self.gamma * (1.0 - terminated)
        rows = [torch.from_numpy(np.asarray(x)) for x in (self._of("reward"), discount, value, after, cut)]
        reward, factor, now, following, ends = rows
        self.advantages = gae(reward, factor, now, following, ends, lam).numpy()
        self.returns = self.advantages + value

    def _of(self, name: str) -> np.ndarray:
        return np.asarray(self.stored(name), np.float64)

    # -- out ---------------------------------------------------------------------------------------------------------

    def get(self, batch_size: int | None = None) -> dict[str, Any]:
        """Return the stored transitions, by step and then by environment: copied arrays [T·E, ...].

        Keys: observations (nested like the space), actions, rewards, dones, values, log_probs; for recurrent agents
        hidden_states (key -> [T·E, layers, units]); if masks were added, action_masks [T·E, W] bool, all True in steps
        without one; once computed, advantages and returns.

        Args:
            batch_size: number of rows, sampled without replacement; None returns all.

        Returns:
            An empty dictionary if nothing is stored.
        """
        if not self.position:
            return {}
        total = self.size()
        if batch_size is not None and batch_size > total:
            text = f"batch_size {batch_size} is larger than buffer size {total}: all rows are returned."
            warnings.warn(text, AgileRLWarning, stacklevel=2)
        batch = {key: self.stored(name) for key, name in PUBLISHED.items()}
        batch["dones"] = self.stored("terminated") | self.stored("truncated")
        if "hidden" in self.fields:
            batch["hidden_states"] = self.stored("hidden")
        if self.num_legal:
            batch["action_masks"] = self.stored("legal")
        if self.advantages is not None:
            batch |= {"advantages": self.advantages, "returns": self.returns}
        flat = {key: map_leaves(lambda x: x.reshape(total, *x.shape[2:]).copy(), x) for key, x in batch.items()}
        if batch_size is None or batch_size >= total:
            return flat
        rows = self._rng.permutation(total)[:batch_size]
        return {key: map_leaves(lambda x: x[rows], x) for key, x in flat.items()}

    def get_tensor_batch(self, batch_size: int | None = None, device: str | torch.device | None = None) -> TensorDict:
        """Return `get` as a TensorDict on `device`, by default the buffer's; `batch_size` [n]."""
        rows = self.get(batch_size)
        count = len(rows["rewards"]) if rows else 0
        return to_tensordict(rows, batch_size=[count], device=self.device if device is None else device)


def _real(values: Any, name: str) -> np.ndarray:
    """Return an array of real numbers; ShapeError for anything else."""
    array = host_array(values)
    if array.dtype.kind not in "biuf":
        raise ShapeError(
            f"RolloutBuffer.add: {name} must be real numbers; got {type(values).__name__} ({array.dtype}). "
            "fix: an array of floats or integers."
        )
    return array


def _check_finite(rows: np.ndarray, name: str) -> None:
    """Raise ReplayError for NaN or Inf: one such row would corrupt the update."""
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        bad = ~np.isfinite(rows).reshape(len(rows), -1).all(1)
        raise ReplayError(
            f"RolloutBuffer.add: {name} must hold finite numbers; that of environment {int(np.argmax(bad))} does not "
            f"({int(bad.sum())} in all). fix: look for a diverged network or a failing environment."
        )


def _choices(space: gym.Space[Any]) -> np.ndarray:
    """Return the number of choices of each component of a flat action [A]; 0 for real-valued ones."""
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        return np.concatenate([_choices(part) for part in leaves(nested(space))])
    if isinstance(space, gym.spaces.Discrete):
        return np.array([space.n], np.int64)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return np.ravel(space.nvec).astype(np.int64)
    size = int(np.prod(space.shape or (), dtype=int))
    return np.full(size, 2 if isinstance(space, gym.spaces.MultiBinary) else 0, np.int64)
