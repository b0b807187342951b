"""Replay of teams under its published name: dicts by agent go in and come out, rows of the team are kept."""

from __future__ import annotations

from collections import deque, namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from agilerl import foreign
from agilerl import tree as trees
from agilerl.components.data import to_tensordict, with_batch_axis
from agilerl.components.row_store import Rows
from agilerl.components.uniform import ROLES, ReplayBuffer
from agilerl.envs.protocol import AGENTS, PRESENT
from agilerl.envs.team import SeenByTeam, by_name, nothing
from agilerl.errors import ConfigError, RunError, ShapeError, unknown_choice

TEAM_ROLES = {**ROLES, **{f"{name}s": role for name, role in ROLES.items() if not name.endswith("s")}}
TEAM_ROLES |= {"observations": "obs", "next_observations": "next_obs", "dones": "done", "next_obs": "next_obs"}
FIELDS = ("obs", "action", "reward", "next_obs", "done")
MASKS = frozenset({("next_mask",), ("obs_mask",)})  # paths of what is kept of them
FREE = "field_"  # how fields of unknown meaning are kept, by their places


class MultiAgentReplayBuffer(ReplayBuffer):
    """The last `memory_size` transitions of a team, kept as the training loop keeps them: one row a team.

    It is the memory of a training function (`write`, `gather`), and of loops of one's own in both published dialects:

    * with `field_names`: `save_to_memory(states, actions, rewards, next_states, dones, is_vectorised=)`, and
      `sample(n)` gives a tuple of dicts by agent in that order, float tensors [n, ...];
    * without: `add(MultiAgentTransition(...))`, or a dict of dicts, and `sample(n)` gives a TensorDict.

    Field names that do not name all five fields are stored without a meaning: each comes out by agent in its place,
    with NaN for an agent that a dict leaves out. Such a memory is for your own loops, not for training functions.

    Who is not there is kept as such: an agent that a dict leaves out, or whose row has a NaN. It comes out as zeros,
    its reward and its end as NaN; observations also say who was there (`present` of the dict by agent, or entries
    `obs_present` and `next_obs_present` of the TensorDict), which `learn` understands. Of observations that a vector of
    `agilerl.vector` gave, the final ones are taken where an episode has ended, although the environment shows the next
    episode already.

    Args:
        memory_size: transitions. field_names: names of what `save_to_memory` is given, in order.
        agent_ids: all agents, in the order of rewards in `gather`. device: where the memory is and samples come out.
        observation_spaces, action_spaces: by agent; needed where agents are absent from the first rows.
        dtype, seed: as for `ReplayBuffer`.

    Attributes:
        has_own_fields: whether `field_names` do not name all five fields of a transition.

    Raises:
        ConfigError: no agents, or names of which one says two fields.
    """

    def __init__(
        self,
        memory_size: int | None = None,
        field_names: Sequence[str] | None = None,
        agent_ids: Sequence[str] | None = None,
        device: str | torch.device | None = None,
        *,
        max_size: int | None = None,
        observation_spaces: Mapping[str, Space[Any]] | None = None,
        action_spaces: Mapping[str, Space[Any]] | None = None,
        dtype: torch.dtype = torch.float32,
        seed: int | None = None,
    ) -> None:
        super().__init__(memory_size if memory_size is not None else max_size, device or "cpu", dtype, seed=seed)
        if not agent_ids:
            raise ConfigError("MultiAgentReplayBuffer needs agent_ids. fix: agent_ids=env.possible_agents.")
        self.agent_ids = [str(agent) for agent in agent_ids]
        self.observation_spaces = observation_spaces
        self.field_names = None if field_names is None else list(field_names)
        self._roles = {name: TEAM_ROLES.get(name, name) for name in self.field_names or FIELDS}
        doubled = [name for name, role in self._roles.items() if list(self._roles.values()).count(role) > 1]
        if doubled:
            raise ConfigError(f"field_names say the same field twice: {doubled}. fix: one name for each field.")
        self.has_own_fields = not set(FIELDS) <= set(self._roles.values())  # of fields whose meaning is not known
        self._widths: dict[str, int] | None = None  # numbers of each agent's action
        self._starts: np.ndarray | None = None  # [A] lowest choices, which rows count from 0; None where not known
        if action_spaces is not None:
            self.set_action_spaces(action_spaces)

    def set_action_spaces(self, action_spaces: Mapping[str, Space[Any]]) -> None:
        """What agents do, where it was not said before: training functions say it of their environment.

        From then on choices come out as the environment counts them, and are kept from 0, as training functions do.
        """
        if self._widths is not None or len(self):
            return
        self._widths = {agent: int(np.prod(action_spaces[agent].shape or (1,))) for agent in self.agent_ids}
        starts = [np.ravel(foreign.start(action_spaces[agent])) for agent in self.agent_ids]
        each = zip(starts, self._widths.values(), strict=True)
        self._starts = np.concatenate([np.broadcast_to(start, width) for start, width in each]).astype(np.float32)

    # -- the engine's interface, of steps of a vector ------------------------------------------------------------------

    def _step_rows(
        self, transition: tuple[Any, ...], next_mask: np.ndarray | None, obs_mask: np.ndarray | None
    ) -> Rows:
        """As of any memory: dicts of arrays, and of dicts of arrays, are laid out without a call for each leaf."""
        known = () if self._fields is None else self._fields
        if next_mask is not None or obs_mask is not None or not MASKS.isdisjoint(known):
            return super()._step_rows(transition, next_mask, obs_mask)
        rows: Rows = {}
        for name, value in zip(FIELDS, transition, strict=True):
            parts = {(name, key): part for key, part in value.items()} if type(value) is dict else {(name,): value}
            for path, part in parts.items():
                for key, leaf in part.items() if type(part) is dict else ((None, part),):
                    if type(leaf) is not np.ndarray or not leaf.ndim:
                        return super()._step_rows(transition, next_mask, obs_mask)
                    rows[path if key is None else (*path, key)] = leaf
        self._check(rows, in_lanes=True)
        return rows

    def gather(self, indices: np.ndarray | Tensor) -> dict[str, Any]:
        """As of any memory; rewards and ends are by agent, and no field costs a call."""
        fields = self._fields or {}
        if ("obs", PRESENT) not in fields:  # nothing yet, or fields of the user's own
            return super().gather(indices)
        data, out = self._gather(indices), dict[str, Any]()
        for path, values in data.items():
            field, role = fields[path], path[0]
            is_choice = role == "action" and not field.dtype.is_floating_point
            if is_choice:
                values = values.long()
            elif field.columns is None and role in ("reward", "done"):
                values = values.to(self.dtype)
            into = out
            for key in path[:-1]:
                into = into.setdefault(key, {})
            is_number = (field.is_scalar or is_choice) and field.shape == (1,)
            into[path[-1]] = values.squeeze(-1) if is_number else values
        return out

    # -- in ----------------------------------------------------------------------------------------------------------

    def save_to_memory(self, *fields: Any, is_vectorised: bool = False) -> None:
        """One transition, or one for each environment: dicts by agent in the order of `field_names`."""
        if self.field_names is None:
            raise ConfigError(
                "save_to_memory() needs field_names. fix: MultiAgentReplayBuffer(memory_size, [...], ids)."
            )
        if len(fields) != len(self.field_names):
            raise ShapeError(f"save_to_memory() takes {self.field_names}: got {len(fields)} values.")
        given = dict(zip(self.field_names, fields, strict=True))
        self._save(given if is_vectorised else {name: _batched(value) for name, value in given.items()})

    def add(self, data: Any) -> None:
        """A batch of transitions by agent: `MultiAgentTransition`, a dict of dicts or a TensorDict, [B, ...] each."""
        data = dict(data if isinstance(data, Mapping) else data.to_dict())
        for name in ("obs", "next_obs"):
            there = data.pop(f"{name}_present", None)
            if there is not None:
                data[name] = MaskedObservations(
                    data[name], {agent: _array(own).reshape(-1) for agent, own in there.items()}
                )
        if data.keys() != self._roles.keys():
            data = {TEAM_ROLES.get(name, name): value for name, value in data.items()}
            self._roles = {name: name for name in data} if self.field_names is None else self._roles
        self._save(dict(data))

    def _save(self, given: Mapping[str, Any]) -> None:
        given = {name: by_name(value) for name, value in given.items()}
        fields = {self._roles.get(name, name): _final(value, name, self._roles) for name, value in given.items()}
        for name, value in fields.items():
            if not isinstance(value, Mapping):
                raise ShapeError(f"{name} must be a dict by agent; got {type(value).__name__}. fix: {{agent: ...}}.")
            unknown = [str(agent) for agent in value if agent not in self.agent_ids]
            if unknown:
                raise ShapeError(f"{name}: {unknown_choice('agent', unknown[0], self.agent_ids)}")
        if self.has_own_fields:
            super().add(self._free_rows(given))
            return
        missing = [name for name in FIELDS if name not in fields]
        if missing:
            raise ShapeError(f"transitions of a team need the fields {FIELDS}; missing: {missing}. fix: field_names.")
        count = next((trees.count_rows(trees.map_leaves(_array, v)) for v in fields["obs"].values()), 0)
        there = self._there(fields["obs"], count)
        reward, done = (self._numbers(fields[name], count) for name in ("reward", "done"))
        there &= ~(np.isnan(reward) | np.isnan(done))
        acted = SeenByTeam.of(fields["next_obs"]).acted
        if acted is not None:  # of a vector: a step in which an environment was replaced is nobody's transition
            there &= np.stack([acted[agent] for agent in self.agent_ids], 1)
        rows = {
            "obs": {AGENTS: self._observed(fields["obs"], there), PRESENT: there.astype(np.int8)},
            "action": self._joined(fields["action"], there),
            "reward": np.where(there, np.nan_to_num(reward), 0.0),
            "next_obs": self._next(fields["next_obs"], count),
            "done": np.nan_to_num(done, nan=1.0) != 0,
        }
        super().add(rows | {name: value for name, value in fields.items() if name not in FIELDS})

    def _free_rows(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of unknown meaning as rows, each under its place, and which rows are there, without a NaN."""
        count = next(trees.count_rows(trees.map_leaves(_array, x)) for own in given.values() for x in own.values())
        rows: dict[str, Any] = {}
        for place, (name, own) in enumerate(given.items()):
            absent = [agent for agent in self.agent_ids if agent not in own]
            if absent and self._store is None:
                raise ShapeError(
                    f"the first rows have no {name} of {absent[0]}, so its shape is not known. "
                    "fix: begin with rows of all agents."
                )
            like = self.gather(np.zeros(count, np.int64))[f"{FREE}{place}"] if absent else {}
            values: dict[str, Any] = {a: trees.map_leaves(_numeric, own.get(a, like.get(a))) for a in self.agent_ids}
            there = {a: np.full(count, a in own) & _finite(values[a], count) for a in self.agent_ids}
            rows[f"{FREE}{place}"] = {a: trees.map_leaves(np.nan_to_num, x) for a, x in values.items()}
            rows[f"{FREE}{place}_there"] = {a: x.astype(np.int8) for a, x in there.items()}
        return rows

    def _free_batch(self, rows: Mapping[str, Any], idxs: Tensor | None) -> Any:
        """Rows of fields of unknown meaning as they came, numbers as columns [n, 1], NaN for rows that were not."""
        fields = []
        for place in range(len(self.field_names or ())):
            own, there = rows[f"{FREE}{place}"], rows[f"{FREE}{place}_there"]
            fields.append({a: self._free_field(_tuples(own[a]), there[a].reshape(-1).bool()) for a in self.agent_ids})
        return tuple(fields) if idxs is None else (*fields, idxs)

    def _free_field(self, rows: Any, there: Tensor) -> Any:
        def leaf(x: Tensor) -> Tensor:
            column = x.to(self.dtype).reshape(len(there), *(x.shape[1:] or (1,)))
            return column.masked_fill(~there.reshape(-1, *[1] * (column.dim() - 1)), torch.nan)

        return trees.map_leaves(leaf, rows)

    def _next(self, seen: Mapping[str, Any], count: int) -> dict[str, Any]:
        there = self._there(seen, count)
        return {AGENTS: self._observed(seen, there), PRESENT: there.astype(np.int8)}

    def _there(self, seen: Mapping[str, Any], count: int) -> np.ndarray:
        """[B, M] whose observations are there: given, without a NaN, and not said to be absent."""
        there = np.zeros((count, len(self.agent_ids)), bool)
        said = SeenByTeam.of(seen).present
        for k, agent in enumerate(self.agent_ids):
            if agent in seen:
                there[:, k] = True if said is None else said[agent]
                for leaf in map(_array, trees.leaves(seen[agent])):
                    if leaf.dtype.kind == "f":
                        there[:, k] &= ~np.isnan(leaf.reshape(len(leaf), -1)).any(1)
        return there

    def _observed(self, seen: Mapping[str, Any], there: np.ndarray) -> dict[str, Any]:
        """Observations of all agents, sorted as lanes show them; zeros where one is absent."""
        found = {}
        for agent in sorted(self.agent_ids):
            present = there[:, self.agent_ids.index(agent)]
            if agent in seen:
                found[agent] = self._shown(agent, seen[agent], present)
            else:
                found[agent] = self._zeros(agent, len(there))
        return found

    def _shown(self, agent: str, rows: Any, present: np.ndarray) -> Any:
        """The agent's rows, with what stands for an absent agent where it is not `present` [B]."""
        rows = trees.map_leaves(_array, rows)
        if present.all() or self.observation_spaces is None:
            return trees.map_leaves(lambda leaf: _kept(leaf, present), rows)
        empty = nothing(self.observation_spaces[agent], len(present))

        def leaf(values: np.ndarray, absent: np.ndarray) -> np.ndarray:
            chosen = present.reshape(-1, *[1] * (values.ndim - 1))
            return np.where(chosen, values, absent.reshape(values.shape).astype(values.dtype))

        return trees.map_leaves(leaf, rows, empty)

    def _zeros(self, agent: str, count: int) -> Any:
        if self.observation_spaces is not None:
            return nothing(self.observation_spaces[agent], count)
        if self._store is None:
            raise ShapeError(
                f"the first rows have no observation of {agent}, so its shape is not known. "
                "fix: observation_spaces={agent: env.observation_space(agent), ...}."
            )
        like = self.gather(np.zeros(count, np.int64))["obs"][AGENTS][agent]
        return trees.map_leaves(lambda leaf: _kept(leaf.numpy(force=True), np.zeros(count, bool)), like)

    def _numbers(self, values: Mapping[str, Any], count: int) -> np.ndarray:
        """[B, M] float64; NaN for an agent that is left out."""
        found = np.full((count, len(self.agent_ids)), np.nan)
        for k, agent in enumerate(self.agent_ids):
            if agent in values:
                found[:, k] = np.asarray(_array(values[agent]), np.float64).reshape(count)
        return found

    def _joined(self, actions: Mapping[str, Any], there: np.ndarray) -> np.ndarray:
        """[B, A] float32, the agents' actions side by side."""
        count = len(there)
        flat = {agent: np.asarray(_array(value), np.float32).reshape(count, -1) for agent, value in actions.items()}
        if self._widths is None:
            absent = [agent for agent in self.agent_ids if agent not in flat]
            if absent:
                raise ShapeError(f"the first rows have no action of {absent[0]}. fix: action_spaces={{agent: ...}}.")
            self._widths = {agent: flat[agent].shape[1] for agent in self.agent_ids}
        parts = []
        for agent, width in self._widths.items():
            part = flat.get(agent, np.zeros((count, width), np.float32))
            if part.shape[1] != width:
                raise ShapeError(
                    f"actions of {agent} have {width} numbers; got {part.shape[1]}. fix: one form of them."
                )
            parts.append(np.nan_to_num(part))
        joined = np.concatenate(parts, 1) if self._starts is None else np.concatenate(parts, 1) - self._starts
        return np.where(there.repeat(list(self._widths.values()), 1), joined, np.float32(0))

    # -- out ---------------------------------------------------------------------------------------------------------

    def _batch(self, indices: np.ndarray, idxs: Tensor | None) -> Any:
        if self._store is None:
            raise RunError("the replay buffer is empty: nothing to sample. fix: add transitions first.")
        rows = self.gather(indices)
        if self.has_own_fields:
            return self._free_batch(rows, idxs)
        there = rows["obs"][PRESENT].bool()
        by_agent: dict[str, Any] = {name: values for name, values in rows.items() if name not in FIELDS}
        for name in ("obs", "next_obs"):
            by_agent[name] = {agent: _tuples(rows[name][AGENTS][agent]) for agent in self.agent_ids}
        for name in ("reward", "done"):
            values = rows[name].to(self.dtype).masked_fill(~there, torch.nan)
            by_agent[name] = {agent: values[:, k : k + 1] for k, agent in enumerate(self.agent_ids)}
        action = rows["action"].to(self.dtype)
        action = action if self._starts is None else action + torch.from_numpy(self._starts).to(action)
        parts = torch.split(action, self._action_widths(action.shape[-1]), -1)
        by_agent["action"] = dict(zip(self.agent_ids, parts, strict=True))
        if self.field_names is None:
            for name in ("obs", "next_obs"):  # which zeros do not say
                here = rows[name][PRESENT].bool()
                by_agent[f"{name}_present"] = {a: here[:, k : k + 1] for k, a in enumerate(self.agent_ids)}
            data = to_tensordict(by_agent, batch_size=[len(indices)])
            if idxs is not None:
                data["idxs"] = idxs
            return data
        fields = tuple(
            trees.map_leaves(lambda leaf: leaf.to(self.dtype), by_agent[self._roles[name]]) for name in self.field_names
        )
        fields = tuple(self._told(rows, name, value) for name, value in zip(self.field_names, fields, strict=True))
        return fields if idxs is None else (*fields, idxs)

    def _told(self, rows: Mapping[str, Any], name: str, value: Any) -> Any:
        """Observations with who was there, which zeros do not say."""
        role = self._roles[name]
        if role not in ("obs", "next_obs"):
            return value
        there = rows[role][PRESENT].bool().numpy(force=True)
        return MaskedObservations(value, {agent: there[:, k] for k, agent in enumerate(self.agent_ids)})

    def _action_widths(self, total: int) -> list[int]:
        widths = self._widths or dict.fromkeys(self.agent_ids, 1)
        if sum(widths.values()) != total:
            raise ConfigError(
                f"rows have {total} numbers for the actions of {self.agent_ids}: which are whose is not known. "
                "fix: MultiAgentReplayBuffer(..., action_spaces={agent: env.action_space(agent), ...})."
            )
        return list(widths.values())

    @property
    def memory(self) -> deque[Any]:
        """All transitions as named tuples of dicts by agent, oldest first: copies."""
        names = self.field_names or list(FIELDS)
        made = namedtuple("Experience", names)  # type: ignore[misc]
        kept: deque[Any] = deque(maxlen=self.max_size)
        if len(self):
            places = self._places(self._oldest() + np.arange(len(self)))
            fields = self._batch(places, None)
            if self.field_names is None:
                fields = tuple(fields[name].to_dict() for name in names)
            for row in range(len(self)):
                each = (trees.map_leaves(lambda leaf, r=row: leaf[r].numpy(force=True), part) for part in fields)
                kept.append(made(*each))
        return kept

    # -- state -------------------------------------------------------------------------------------------------------

    def state(self, *, rows: bool = True) -> dict[str, Any]:
        known = {
            "widths": None if self._widths is None else dict(self._widths),
            "starts": None if self._starts is None else self._starts.tolist(),
        }
        return {**super().state(rows=rows), **known}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        if state.get("widths") is not None:
            self._widths = {agent: int(width) for agent, width in state["widths"].items()}
        if state.get("starts") is not None:
            self._starts = np.asarray(state["starts"], np.float32)


def _final(value: Any, name: str, roles: Mapping[str, str]) -> Any:
    """What a field holds: of next observations those that the step led to, before the next episode began."""
    seen = SeenByTeam.of(value)
    if roles.get(name, name) == "next_obs" and seen.final is not None:
        return MaskedObservations(seen.final, seen.final_present, seen.acted)
    return value


class MaskedObservations(SeenByTeam):
    """Observations by agent, who is there, and who acted in the step that led to them."""

    def __init__(
        self,
        rows: Mapping[str, Any],
        present: Mapping[str, np.ndarray] | None,
        acted: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__(rows)
        self.present, self.acted = present, acted


def _array(leaf: Any) -> np.ndarray:
    return leaf.numpy(force=True) if isinstance(leaf, Tensor) else np.asarray(leaf)


def _batched(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {agent: with_batch_axis(row) for agent, row in value.items() if row is not None}


def _numeric(leaf: Any) -> np.ndarray:
    """Rows that can also be NaN."""
    return _array(leaf).astype(np.float32)


def _finite(rows: Any, count: int) -> np.ndarray:
    """[B] bool: rows without a NaN."""
    each = [~np.isnan(leaf.reshape(count, -1)).any(1) for leaf in trees.leaves(rows)]
    return np.asarray(np.logical_and.reduce(each))


def _kept(leaf: np.ndarray, present: np.ndarray) -> np.ndarray:
    """The rows where the agent is there, zeros elsewhere; numbers of choices stay: 0 need not be one."""
    if present.all() or leaf.dtype == np.int64:
        return leaf
    kept = np.zeros_like(leaf)
    kept[present] = leaf[present]
    return kept


def _tuples(node: Any) -> Any:
    """Tuples as they were before they were kept as keys `tuple_obs_i`."""
    if not isinstance(node, Mapping):
        return node
    parts = {key: _tuples(part) for key, part in node.items()}
    return tuple(parts.values()) if all(key.startswith("tuple_obs_") for key in parts) else parts
