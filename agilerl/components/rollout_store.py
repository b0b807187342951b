"""Rollouts of one policy, or several in lockstep, in one contiguous block of memory for learners.

See `rollout_buffer.RolloutBuffer` for the published buffer of custom loops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from agilerl.core import tree as trees
from agilerl.core.ranges import Count, check
from agilerl.core.tree import Tree, leaves, map_leaves
from agilerl.errors import ShapeError

ALIGNMENT = 64  # bytes: a cache line


@dataclass(frozen=True)
class Truncation:
    """Lanes truncated by a time limit in one vector step.

    Attributes:
        step: vector step in the rollout. lanes: [k]. obs: [k, ...] their FINAL observations.
        value: [k] of these, if known immediately (recurrent policies); else None.
    """

    step: int
    lanes: np.ndarray
    obs: Any
    value: np.ndarray | None = None


class RolloutStore:
    """T vector steps of L lanes, in the data's own dtypes.

    Only data needed for learning are stored. The next observation of a step is the observation of the following one;
    the FINAL observation is stored only where a time limit truncated an episode, outside of the block.

    Args:
        capacity: T. num_envs: L, lanes (of all members that share a buffer).
        observation_space, action_space: spaces of one environment.
        hidden_state_architecture: key -> (layers, units) of a recurrent policy, stored before every step.
        num_legal: length of the stored action mask; 0 for none.
        agents: M for multi-agent rollouts: reward, both ends, valid, log_prob and value then have an additional axis,
            [L, M]; 0 for a single agent.

    Attributes:
        position: stored vector steps.
        fields: name -> [T, L, ...] views of the block (obs nested like the space): obs, action, reward, terminated,
            truncated, valid (False where a row is not a transition), log_prob, value, and, if requested, legal and
            hidden (key -> [T, L, layers, units]).
        truncations: in order of occurrence.
        values_known: whether the values of all steps were stored.
        last_obs: [L, ...] observation after the last step. last_value: [L], if known immediately.
    """

    use_gae = True  # False: Monte-Carlo returns, that is λ = 1

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        hidden_state_architecture: Mapping[str, tuple[int, int]] | None = None,
        num_legal: int = 0,
        agents: int = 0,
    ) -> None:
        check(f"{type(self).__name__}: capacity", capacity, Count, 2048)
        check(f"{type(self).__name__}: num_envs", num_envs, Count, 1)
        self.capacity, self.num_envs = int(capacity), int(num_envs)
        self.observation_space, self.action_space = observation_space, action_space
        self.hidden_state_architecture = dict(hidden_state_architecture or {})
        self.num_legal, self.agents = int(num_legal), int(agents)
        self.block: np.ndarray = np.empty(0, np.uint8)
        self.fields: dict[str, Any] = {}
        self.reset()

    def reset(self) -> None:
        """Discard the stored steps; the memory is kept."""
        self.position = 0
        self.truncations: list[Truncation] = []
        self.values_known = True
        self.last_obs: Any = None
        self.last_value: np.ndarray | None = None

    @property
    def full(self) -> bool:
        """Whether T vector steps are stored."""
        return self.position >= self.capacity

    def __len__(self) -> int:
        return self.position

    def __repr__(self) -> str:
        """Summarise fill level, fields and memory."""
        names = ", ".join(self.fields) or "not known before the first step"
        return (
            f"{type(self).__name__}: {self.position:,} of {self.capacity:,} vector steps x {self.num_envs} lanes, "
            f"{self.block.nbytes / 1e6:.1f} MB\n  fields: {names}"
        )

    def add(
        self,
        obs: Tree,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        log_prob: np.ndarray,
        value: np.ndarray | None = None,
        *,
        final_obs: Tree | None = None,
        final_value: np.ndarray | None = None,
        valid: np.ndarray | None = None,
        legal: np.ndarray | None = None,
        hidden: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Store one vector step.

        Args:
            obs: [L, ...] before the step. action, reward, log_prob: [L, ...].
            terminated, truncated: [L] bool, of this step.
            value: [L] of `obs`; may be written later into `fields["value"]`.
            final_obs: [L, ...] after the step and before any reset; read where `truncated`.
            final_value: [L] of `final_obs`, for policies whose values need more than the observation.
            valid: [L] bool, False where the row is not a transition; all by default.
            legal: [L, A] bool. hidden: key -> [layers, L, units], before the step.

        Raises:
            ShapeError: the buffer is full, or rows do not fit the first ones.
        """
        if self.full:
            raise ShapeError(f"Buffer has reached capacity ({self.capacity} steps). fix: learn() from it, or reset().")
        if not self.fields:
            self._allocate(obs, np.asarray(action), np.asarray(log_prob))
        now: dict[str, Any] = {"obs": obs, "action": action, "reward": reward, "log_prob": log_prob}
        now |= {"terminated": terminated, "truncated": truncated, "valid": True if valid is None else valid}
        if value is None:
            self.values_known = False
        else:
            now["value"] = value
        if legal is not None and self.fields.get("legal") is None:  # first mask: everything was legal before
            self.num_legal = legal.shape[-1]
            self.fields["legal"] = np.ones((self.capacity, *legal.shape), bool)
        if self.num_legal:
            now["legal"] = True if legal is None else legal
        if hidden is not None:
            now["hidden"] = {key: np.moveaxis(np.asarray(part), 0, 1) for key, part in hidden.items()}
        for name, rows in now.items():
            self._put(self.fields[name], rows, name)
        cut = np.flatnonzero(truncated.any(1) if self.agents else truncated)
        if len(cut):
            if final_obs is None:
                raise ShapeError(
                    "truncated lanes need final_obs: the value of the observation before the reset stands in for what "
                    "the time limit cut off. fix: add(..., final_obs=...)."
                )
            final_values = None if final_value is None else np.asarray(final_value)[cut]
            self.truncations.append(Truncation(self.position, cut, trees.take(final_obs, cut), final_values))
        self.position += 1

    def _put(self, field: Any, rows: Any, name: str) -> None:
        if isinstance(field, np.ndarray):
            try:
                field[self.position] = rows
            except ValueError:
                shape = np.shape(rows)
                raise ShapeError(f"rollout field {name!r} has rows of {field.shape[1:]}; got {shape}.") from None
        else:
            for key in field if isinstance(field, dict) else range(len(field)):
                self._put(field[key], rows[key], f"{name}/{key}")

    def _allocate(self, obs: Tree, action: np.ndarray, log_prob: np.ndarray) -> None:
        """Allocate the fields in one block, with the layout of the first rows."""
        lanes = self.num_envs
        flag = np.zeros((lanes, self.agents) if self.agents else lanes, bool)
        rows: dict[str, Any] = {"obs": obs, "action": action, "reward": np.zeros(flag.shape)}
        rows |= {"terminated": flag, "truncated": flag, "valid": flag, "log_prob": log_prob, "value": log_prob}
        if self.num_legal:
            rows["legal"] = np.zeros((lanes, self.num_legal), bool)
        if self.hidden_state_architecture:
            shapes = self.hidden_state_architecture.items()
            rows["hidden"] = {key: np.zeros((lanes, *shape), log_prob.dtype) for key, shape in shapes}
        sizes = [-(-self.capacity * np.asarray(leaf).nbytes // ALIGNMENT) * ALIGNMENT for leaf in leaves(rows)]
        starts = iter(np.cumsum([0, *sizes]).tolist())
        self.block = np.zeros(sum(sizes), np.uint8)

        def view(leaf: Tree) -> np.ndarray:
            like, start = np.asarray(leaf), next(starts)
            part = self.block[start : start + self.capacity * like.nbytes].view(like.dtype)
            return np.asarray(part.reshape(self.capacity, *like.shape))

        self.fields = map_leaves(view, rows)

    def stored(self, name: str) -> Any:
        """Return views [position, L, ...] of the stored steps of one field."""
        return map_leaves(lambda x: x[: self.position], self.fields[name])
