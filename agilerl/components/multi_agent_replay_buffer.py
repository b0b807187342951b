"""Multi-agent replay under its published name: dicts by agent outside, one row per team transition inside."""

from __future__ import annotations

from collections import deque, namedtuple
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from agilerl.components.data import Transition, to_tensordict
from agilerl.components.rows import check_distinct, host_array
from agilerl.components.uniform import ROLES, ReplayBuffer
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.ranges import Count
from agilerl.core.tree import Tree
from agilerl.envs.protocol import AGENTS, PRESENT, SeenByTeam
from agilerl.envs.team import by_name, nothing
from agilerl.errors import ConfigError, RunError, ShapeError, unknown_choice

TEAM_ROLES = {**ROLES, **{f"{name}s": role for name, role in ROLES.items() if not name.endswith("s")}}
TEAM_ROLES |= {"observations": "obs", "next_observations": "next_obs", "dones": "done", "next_obs": "next_obs"}
FIELDS = Transition.FIELDS
FREE = "field_"  # prefix of custom fields, numbered by position


class MultiAgentReplayBuffer(ReplayBuffer):
    """The last `memory_size` transitions of a team, one row per transition, as in the training loop.

    Memory of a training function (`write`, `gather`), and of custom loops with either published interface:

    * with `field_names`: `save_to_memory(states, actions, rewards, next_states, dones, is_vectorised=)`, and
      `sample(n)` returns a tuple of dicts by agent in that order, float tensors [n, ...];
    * without: `add(MultiAgentTransition(...))`, or a dict of dicts, and `sample(n)` returns a TensorDict.

    Field names that do not include all five fields are custom fields: each is returned by agent at its position, with
    NaN for agents missing from a dict. Such a memory is for custom loops, not for training functions.

    Absent agents (missing from a dict, or with a NaN in their row) are masked. They are returned as zeros, their reward
    and end as NaN. Observations carry the presence mask (`present` of the dict by agent, or entries `obs_present` and
    `next_obs_present` of the TensorDict), which `learn` reads. With observations from a vector environment of
    `agilerl.vector`, the final observation is stored where an episode has ended, not the first one of the next episode.

    Args:
        memory_size: transitions. field_names: names of the arguments of `save_to_memory`, in order.
        agent_ids: all agents, in the order of rewards in `gather`. device: device of the memory and of samples.
        observation_spaces, action_spaces: by agent; required if agents are absent from the first rows.
        dtype, seed: see `ReplayBuffer`.

    Attributes:
        has_own_fields: whether the fields are custom ones.

    Raises:
        ConfigError: no agents, or two names for one field.
    """

    _undone = (*ReplayBuffer._undone, "_roles", "_widths", "_starts")

    def __init__(
        self,
        memory_size: Count | None = None,
        field_names: Sequence[str] | None = None,
        agent_ids: Sequence[str] | None = None,
        device: str | torch.device | None = None,
        *,
        max_size: Count | None = None,
        observation_spaces: Mapping[str, Space[Any]] | None = None,
        action_spaces: Mapping[str, Space[Any]] | None = None,
        dtype: torch.dtype = torch.float32,
        seed: int | None = None,
    ) -> None:
        super().__init__(memory_size if memory_size is not None else max_size, device or "cpu", dtype, seed=seed)
        if agent_ids is None or not len(agent_ids):
            raise ConfigError("MultiAgentReplayBuffer needs agent_ids. fix: agent_ids=env.possible_agents.")
        self.agent_ids = [str(agent) for agent in agent_ids]
        self.observation_spaces = observation_spaces
        self.field_names = None if field_names is None else list(field_names)
        self._roles = {name: TEAM_ROLES.get(name, name) for name in self.field_names or FIELDS}
        check_distinct("field_names", [TEAM_ROLES.get(name, name) for name in self.field_names or ()])
        check_distinct("agent_ids", self.agent_ids)
        self.has_own_fields = not set(FIELDS) <= set(self._roles.values())  # custom fields
        self._widths: dict[str, int] | None = None  # width of each agent's action
        self._starts: np.ndarray | None = None  # [A] lowest choices, stored as 0; None if unknown
        if action_spaces is not None:
            self.set_action_spaces(action_spaces)

    def set_action_spaces(self, action_spaces: Mapping[str, Space[Any]]) -> None:
        """Set the action spaces if they are unknown so far; training functions call this with their environment's.

        From then on discrete actions are stored from 0, and returned with the offset of their space.
        """
        if self._widths is not None or len(self):
            return
        self._widths = {agent: int(np.prod(action_spaces[agent].shape or (1,))) for agent in self.agent_ids}
        starts = [np.ravel(foreign.start(action_spaces[agent])) for agent in self.agent_ids]
        columns = zip(starts, self._widths.values(), strict=True)
        self._starts = np.concatenate([np.broadcast_to(start, width) for start, width in columns]).astype(np.float32)

    # -- in ----------------------------------------------------------------------------------------------------------

    def add(self, data: Any) -> None:
        """Add a batch of transitions by agent: `MultiAgentTransition`, a dict of dicts or a TensorDict, [B, ...]."""
        data = dict(data.to_dict() if foreign.has_methods(data, "to_dict") else data)  # nested TensorDicts too
        for name in ("obs", "next_obs"):
            presence = data.pop(f"{name}_present", None)
            if presence is not None:
                data[name] = MaskedObservations(
                    data[name], {agent: host_array(flags).reshape(-1) for agent, flags in presence.items()}
                )
        if data.keys() != self._roles.keys():
            data = {TEAM_ROLES.get(name, name): value for name, value in data.items()}
            self._roles = {name: name for name in data} if self.field_names is None else self._roles
        self._save(dict(data))

    def _save(self, named_fields: Mapping[str, Any]) -> None:
        named_fields = {name: _without_none(by_name(value)) for name, value in named_fields.items()}
        fields = {self._roles.get(name, name): _final(value, name, self._roles) for name, value in named_fields.items()}
        for name, value in fields.items():
            if not isinstance(value, Mapping):
                raise ShapeError(f"{name} must be a dict by agent; got {type(value).__name__}. fix: {{agent: ...}}.")
            unknown = [str(agent) for agent in value if agent not in self.agent_ids]
            if unknown:
                raise ShapeError(f"{name}: {unknown_choice('agent', unknown[0], self.agent_ids)}")
        count = self._count_rows(named_fields)
        if not count:
            return
        if self.has_own_fields:
            super().add(self._free_rows(named_fields, count))
            return
        missing = [name for name in FIELDS if name not in fields]
        if missing:
            raise ShapeError(f"transitions of a team need the fields {FIELDS}; missing: {missing}. fix: field_names.")
        reward, done = (self._numbers(name, fields[name], count) for name in ("reward", "done"))
        presence = self._presence(fields["obs"], count) & self._presence(fields["action"], count)
        presence &= ~(np.isnan(reward) | np.isnan(done))
        acted = SeenByTeam.of(fields["next_obs"]).acted
        if acted is not None:  # vector environments: the step that replaced an environment is not a transition
            presence &= np.stack([acted[agent] for agent in self.agent_ids], 1)
        rows = {
            "obs": {AGENTS: self._observed(fields["obs"], presence), PRESENT: presence.astype(np.int8)},
            "action": self._joined(fields["action"], presence),
            "reward": np.where(presence, np.nan_to_num(reward), 0.0),
            "next_obs": self._next(fields["next_obs"], count),
            "done": np.nan_to_num(done, nan=1.0) != 0,
        }
        super().add(rows | {name: value for name, value in fields.items() if name not in FIELDS})

    def _count_rows(self, named_fields: Mapping[str, Any]) -> int:
        """Return the number of rows of every field of every agent; ShapeError if they differ or are no numbers."""
        count, first = -1, ""
        for name, by_agent in named_fields.items():
            has_parts = self.has_own_fields or self._roles.get(name, name) not in ("action", "reward", "done")
            for agent, value in by_agent.items():
                for leaf in trees.leaves(value) if has_parts else (value,):
                    rows, what = host_array(leaf), f"{name} of {agent}"
                    if rows.dtype.kind not in "biuf":
                        raise ShapeError(
                            f"{what} must be real numbers; got {type(leaf).__name__} ({rows.dtype}). "
                            "fix: an array of floats or integers, or leave out agents that are absent."
                        )
                    length = len(rows) if rows.ndim else 0
                    if not rows.ndim or count not in (-1, length):
                        got = f"{length} rows" if rows.ndim else "one number"
                        wanted = f", and {first} has {count}" if count > -1 else ""
                        raise ShapeError(
                            f"{what} has {got}{wanted}. fix: a row for every environment of each field, or "
                            "is_vectorised=False for one transition."
                        )
                    count, first = length, first or what
        return max(count, 0)

    def _free_rows(self, named_fields: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Return custom fields as rows, by position, and masks of the rows that are present and without NaN."""
        rows: dict[str, Any] = {}
        for place, (name, by_agent) in enumerate(named_fields.items()):
            absent = [agent for agent in self.agent_ids if agent not in by_agent]
            if absent and self._store is None:
                raise ShapeError(
                    f"the first rows have no {name} of {absent[0]}, so its shape is unknown. "
                    "fix: begin with rows of all agents."
                )
            like = self.gather(np.zeros(count, np.int64))[f"{FREE}{place}"] if absent else {}
            values: dict[str, Any] = {
                a: trees.map_leaves(_numeric, by_agent.get(a, like.get(a))) for a in self.agent_ids
            }
            presence = {a: np.full(count, a in by_agent) & _finite(values[a], count) for a in self.agent_ids}
            rows[f"{FREE}{place}"] = {a: trees.map_leaves(np.nan_to_num, x) for a, x in values.items()}
            rows[f"{FREE}{place}_there"] = {a: x.astype(np.int8) for a, x in presence.items()}
        return rows

    def _free_batch(self, rows: Mapping[str, Any], idxs: Tensor | None) -> Any:
        """Return rows of custom fields as added: numbers as columns [n, 1], NaN for absent rows."""
        fields = []
        for place in range(len(self.field_names or ())):
            by_agent, presence = rows[f"{FREE}{place}"], rows[f"{FREE}{place}_there"]
            fields.append(
                {a: self._free_field(_tuples(by_agent[a]), presence[a].reshape(-1).bool()) for a in self.agent_ids}
            )
        return tuple(fields) if idxs is None else (*fields, idxs)

    def _free_field(self, rows: Tree, presence: Tensor) -> Any:
        def leaf(x: Tensor) -> Tensor:
            column = x.to(self.dtype).reshape(len(presence), *(x.shape[1:] or (1,)))
            return column.masked_fill(~presence.reshape(-1, *[1] * (column.dim() - 1)), torch.nan)

        return trees.map_leaves(leaf, rows)

    def _next(self, agent_obs: Mapping[str, Any], count: int) -> dict[str, Any]:
        presence = self._presence(agent_obs, count)
        return {AGENTS: self._observed(agent_obs, presence), PRESENT: presence.astype(np.int8)}

    def _presence(self, by_agent: Mapping[str, Any], count: int) -> np.ndarray:
        """Return [B, M] bool: agents with rows that have no NaN and are not masked as absent."""
        presence = np.zeros((count, len(self.agent_ids)), bool)
        declared = SeenByTeam.of(by_agent).present or {}
        for k, agent in enumerate(self.agent_ids):
            if agent in by_agent:
                presence[:, k] = _finite(by_agent[agent], count) & declared.get(agent, True)
        return presence

    def _observed(self, agent_obs: Mapping[str, Any], presence: np.ndarray) -> dict[str, Any]:
        """Return the observations of all agents, sorted as in lanes, with placeholders for absent agents."""
        observations = {}
        for agent in sorted(self.agent_ids):
            present = presence[:, self.agent_ids.index(agent)]
            rows = trees.map_leaves(host_array, agent_obs[agent]) if agent in agent_obs else None
            if rows is None or not present.all():
                empty = self._placeholder(agent, rows, len(present))
                rows = empty if rows is None else trees.map_leaves(partial(_where, present), rows, empty)
            observations[agent] = rows
        return observations

    def _placeholder(self, agent: str, rows: Tree | None, count: int) -> Any:
        """Return an empty observation; without spaces zeros, except in discrete ones, where 0 may be no choice."""
        if self.observation_spaces is not None:
            return nothing(self.observation_spaces[agent], count)
        if rows is None and self._store is None:
            raise ShapeError(
                f"the first rows have no observation of {agent}, so its shape is unknown. "
                "fix: observation_spaces={agent: env.observation_space(agent), ...}."
            )
        rows = self.gather(np.zeros(count, np.int64))["obs"][AGENTS][agent] if rows is None else rows
        return trees.map_leaves(
            lambda x: x if x.dtype == np.int64 else np.zeros_like(x), trees.map_leaves(host_array, rows)
        )

    def _numbers(self, name: str, values: Mapping[str, Any], count: int) -> np.ndarray:
        """Return [B, M] float64; NaN for missing agents."""
        numbers = np.full((count, len(self.agent_ids)), np.nan)
        for k, agent in enumerate(self.agent_ids):
            if agent in values:
                rows = host_array(values[agent])
                if rows.size != len(rows):
                    raise ShapeError(
                        f"{name} of {agent} must be one number for each row; got the shape {rows.shape}. "
                        "fix: is_vectorised=True for rows of several environments."
                    )
                numbers[:, k] = rows.reshape(-1)
        return numbers

    def _joined(self, actions: Mapping[str, Any], presence: np.ndarray) -> np.ndarray:
        """Return the agents' actions, concatenated: [B, A] float32."""
        count = len(presence)
        flat = {agent: np.asarray(host_array(value), np.float32).reshape(count, -1) for agent, value in actions.items()}
        if self._widths is None:
            absent = [agent for agent in self.agent_ids if agent not in flat]
            if absent:
                raise ShapeError(f"the first rows have no action of {absent[0]}. fix: action_spaces={{agent: ...}}.")
            self._widths = {agent: flat[agent].shape[1] for agent in self.agent_ids}
        parts = []
        for agent, width in self._widths.items():
            part = flat.get(agent, np.zeros((count, width), np.float32))
            if part.shape[1] != width:
                raise ShapeError(f"actions of {agent} have {width} numbers; got {part.shape[1]}. fix: one shape.")
            parts.append(np.nan_to_num(part))
        joined = np.concatenate(parts, 1) if self._starts is None else np.concatenate(parts, 1) - self._starts
        return np.where(presence.repeat(list(self._widths.values()), 1), joined, np.float32(0))

    # -- out ---------------------------------------------------------------------------------------------------------

    def _batch(self, indices: np.ndarray, idxs: Tensor | None) -> Any:
        if self._store is None:
            raise RunError("the replay buffer is empty: nothing to sample. fix: add transitions first.")
        rows = self.gather(indices)
        if self.has_own_fields:
            return self._free_batch(rows, idxs)
        presence = rows["obs"][PRESENT].bool()
        by_agent: dict[str, Any] = {name: values for name, values in rows.items() if name not in FIELDS}
        for name in ("obs", "next_obs"):
            by_agent[name] = {agent: _tuples(rows[name][AGENTS][agent]) for agent in self.agent_ids}
        for name in ("reward", "done"):
            values = rows[name].to(self.dtype).masked_fill(~presence, torch.nan)
            by_agent[name] = {agent: values[:, k : k + 1] for k, agent in enumerate(self.agent_ids)}
        action = rows["action"].to(self.dtype)
        action = action if self._starts is None else action + torch.from_numpy(self._starts).to(action)
        parts = torch.split(action, self._action_widths(action.shape[-1]), -1)
        by_agent["action"] = dict(zip(self.agent_ids, parts, strict=True))
        if self.field_names is None:
            for name in ("obs", "next_obs"):  # zeros alone do not tell absence
                here = rows[name][PRESENT].bool()
                by_agent[f"{name}_present"] = {a: here[:, k : k + 1] for k, a in enumerate(self.agent_ids)}
            data = to_tensordict(by_agent, batch_size=[len(indices)])
            if idxs is not None:
                data["idxs"] = idxs
            return data
        fields = tuple(
            trees.map_leaves(lambda leaf: leaf.to(self.dtype), by_agent.get(self._roles[name], {}))
            for name in self.field_names
        )
        fields = tuple(
            self._with_presence(rows, name, value) for name, value in zip(self.field_names, fields, strict=True)
        )
        return fields if idxs is None else (*fields, idxs)

    def _with_presence(self, rows: Mapping[str, Any], name: str, value: Mapping[str, Any]) -> Any:
        """Return observations with their presence mask; other fields unchanged."""
        role = self._roles[name]
        if role not in ("obs", "next_obs"):
            return value
        presence = rows[role][PRESENT].bool().numpy(force=True)
        return MaskedObservations(value, {agent: presence[:, k] for k, agent in enumerate(self.agent_ids)})

    def _action_widths(self, total: int) -> list[int]:
        widths = self._widths or dict.fromkeys(self.agent_ids, 1)
        if sum(widths.values()) != total:
            raise ConfigError(
                f"rows have {total} numbers for the actions of {self.agent_ids}: their split is unknown. "
                "fix: MultiAgentReplayBuffer(..., action_spaces={agent: env.action_space(agent), ...})."
            )
        return list(widths.values())

    @property
    def memory(self) -> deque[Any]:
        """Copies of all transitions as named tuples of dicts by agent, oldest first."""
        names = self.field_names or list(FIELDS)
        Experience = namedtuple("Experience", names)  # type: ignore[misc]
        experiences: deque[Any] = deque(maxlen=self.max_size)
        if len(self):
            places = self._places(self._oldest() + np.arange(len(self)))
            fields = self._batch(places, None)
            if self.field_names is None:
                fields = tuple(fields[name].to_dict() for name in names)
            for row in range(len(self)):
                parts = (trees.map_leaves(lambda leaf, r=row: leaf[r].numpy(force=True), part) for part in fields)
                experiences.append(Experience(*parts))
        return experiences

    # -- state -------------------------------------------------------------------------------------------------------

    def state(self, *, rows: bool = True) -> dict[str, Any]:
        actions = {
            "widths": None if self._widths is None else dict(self._widths),
            "starts": None if self._starts is None else self._starts.tolist(),
        }
        return {**super().state(rows=rows), **actions}

    def _restore(self, state: Mapping[str, Any]) -> None:
        if state["fields"] is not None and "widths" not in state:
            raise RunError("the saved buffer is that of one agent. fix: load it into a ReplayBuffer.")
        super()._restore(state)
        if state.get("widths") is not None:
            self._widths = {agent: int(width) for agent, width in state["widths"].items()}
        if state.get("starts") is not None:
            self._starts = np.asarray(state["starts"], np.float32)


def _final(value: Mapping[str, Any], name: str, roles: Mapping[str, str]) -> Any:
    """Return a field's values; for next observations the final ones where an episode has ended."""
    final = SeenByTeam.of(value)
    if roles.get(name, name) == "next_obs" and final.final is not None:
        return MaskedObservations(final.final, final.final_present, final.acted)
    return value


class MaskedObservations(SeenByTeam):
    """Observations by agent with two masks: agents present, and agents that acted in the previous step."""

    def __init__(
        self,
        rows: Mapping[str, Any],
        present: Mapping[str, np.ndarray] | None,
        acted: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__(rows)
        self.present, self.acted = present, acted


def _without_none(value: Mapping[str, Any]) -> Any:
    """Leave out agents whose row is None: they are absent."""
    if type(value) is not dict or not any(row is None for row in value.values()):
        return value
    return {agent: row for agent, row in value.items() if row is not None}


def _numeric(leaf: Tree) -> np.ndarray:
    """Return rows as float32, which can hold NaN."""
    return host_array(leaf).astype(np.float32)


def _finite(rows: Tree, count: int) -> np.ndarray:
    """Return [B] bool: rows without a NaN."""
    arrays = [array for array in map(host_array, trees.leaves(rows)) if array.dtype.kind == "f"]
    flags = [~np.isnan(array.reshape(count, -1)).any(1) for array in arrays]
    return np.asarray(np.logical_and.reduce([np.ones(count, bool), *flags]))


def _where(present: np.ndarray, rows: np.ndarray, empty: np.ndarray) -> np.ndarray:
    chosen = present.reshape(-1, *[1] * (rows.ndim - 1))
    return np.where(chosen, rows, empty.reshape(rows.shape).astype(rows.dtype))


def _tuples(node: Tree) -> Any:
    """Restore tuples from dicts with keys `tuple_obs_i`."""
    if not isinstance(node, Mapping):
        return node
    parts = {key: _tuples(part) for key, part in node.items()}
    return tuple(parts.values()) if all(key.startswith("tuple_obs_") for key in parts) else parts
